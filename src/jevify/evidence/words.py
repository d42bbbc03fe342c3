"""Common English words that benchmark requests are made of."""

_TEXT = """
time year people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work government number night point home water room
mother area money story fact month lot right study book eye job word business issue side kind head house
service friend father power hour game line end member law car city community name president team minute idea
kid body information back parent face others level office door health person art war history party result
change morning reason research girl guy moment air teacher force education foot boy age policy process music
market sense nation plan college interest death experience effect use class control care field development
role effort rate heart drug show leader light voice wife police mind price report decision son view town road
arm difference value building action season society tax director position player record paper space ground
form event matter center couple site project star table need court oil situation cost industry figure street
image phone data picture practice piece land product doctor wall patient worker news test movie north love
support technology step baby computer type attention film tree source truth letter garden river animal window
summer winter spring bread coffee dinner kitchen stone bridge train station ticket order refund package
delivery customer account card payment invoice receipt store shop coat shoe shirt dress color box bag bottle
cup plate knife spoon chair desk lamp bed floor roof corner path mountain lake ocean beach island forest bird
horse fish dog cat cow sheep grass flower leaf seed fruit apple orange lemon sugar salt rice meat milk cheese
egg soup lunch breakfast meal hotel airport flight ship boat truck bus wheel engine fuel metal gold silver
glass wood cotton leather rain snow wind storm cloud sky sun moon fire smoke heat ice cold warm hot dry wet
clean dirty new old young early late long short high low big small large little great good bad best better
hard soft easy strong weak fast slow quick quiet loud bright dark heavy full empty open closed free busy ready
sure true false real clear simple common special public private local national general main major final first
second third next last able black white red blue green brown yellow happy sad angry afraid proud tired sick
healthy rich poor safe dangerous fair equal different similar important possible certain recent available
likely serious current past present future make take give find think know want see look come go get keep let
begin start stop help talk turn move live believe bring happen write provide sit stand lose pay meet include
continue set learn lead understand watch follow create speak read allow add spend grow walk win offer remember
consider appear buy wait serve die send expect build stay fall cut reach kill remain suggest raise pass sell
require decide pull break carry wish drop push throw catch draw choose wear hang shake ride sing dance swim
climb cook wash paint repair measure weigh count teach explain describe answer ask call try leave feel become
seem hear play run hold always never often sometimes usually again already almost together perhaps quite
rather very really soon today tomorrow yesterday
"""

WORDS: tuple[str, ...] = tuple(_TEXT.split())
