"""Route a support ticket: which department, and does it ask for a refund?

python examples/route_ticket.py "My card was charged twice and I want the money back."
"""

import argparse
import sys
from collections.abc import Sequence

from jevify import Choice, Noul, Workflow
from jevify.engine import DecisionEngine
from jevify.errors import JevifyError
from jevify.models.catalog import DEFAULT_MODEL

ROUTING = Workflow(
    questions={
        "department": Choice(
            instructions="Which department should handle this message?",
            criteria={
                "billing": "Charges, invoices, refunds and payment methods",
                "shipping": "Delivery, tracking, lost or damaged parcels",
                "technical": "The product does not work or is hard to use",
            },
        ),
        "refund": Noul(instructions="Does the customer ask for money back?"),
    }
)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the department and the probability that money is asked back; 0, or the exit code of the error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("ticket", help="the text of the ticket")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a name, a folder or a hub id")
    args = parser.parse_args(argv)
    try:
        engine = DecisionEngine.from_pretrained(args.model)
        answers = ROUTING.run(engine, context=args.ticket)["answers"]
    except JevifyError as error:
        print(error, file=sys.stderr)
        return error.exit_code

    department = answers["department"]
    probability = department["probabilities"][department["choice"]]
    print(f"department: {department['choice']} (probability {probability:.2f})")
    print(f"refund: {'yes' if answers['refund']['noul'] > 0.5 else 'no'} ({answers['refund']['noul']:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
