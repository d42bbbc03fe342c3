// A call of the server as text that can be pasted into a shell or a Python program.

const shell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** A Python literal of JSON data. A JSON string is a Python string, except for characters beyond the BMP and lone halves. */
function literal(value, indent = "") {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "number") return String(value);
  if (typeof value === "string") return JSON.stringify(value);
  const inner = indent + "    ";
  if (Array.isArray(value)) return value.length ? `[\n${value.map((item) => `${inner}${literal(item, inner)},\n`).join("")}${indent}]` : "[]";
  const entries = Object.entries(value);
  return entries.length ? `{\n${entries.map(([key, item]) => `${inner}${JSON.stringify(key)}: ${literal(item, inner)},\n`).join("")}${indent}}` : "{}";
}

/** The call for a POSIX shell; the key is read from JEVIFY_API_KEY, never written out. */
export function callAsCurl(origin, body, withKey) {
  const key = withKey ? ` \\\n  -H "Authorization: Bearer $JEVIFY_API_KEY"` : "";
  return `curl -sS ${shell(`${origin}/v1/systemone`)} \\\n  -H 'Content-Type: application/json'${key} \\\n  --data-binary ${shell(JSON.stringify(body))}\n`;
}

/** The call for Python's standard library. */
export function callAsPython(origin, body, withKey) {
  const key = withKey ? ', "Authorization": "Bearer " + os.environ["JEVIFY_API_KEY"]' : "";
  return `import json\n${withKey ? "import os\n" : ""}import urllib.request\n\nbody = ${literal(body)}\nrequest = urllib.request.Request(\n    ${JSON.stringify(`${origin}/v1/systemone`)},\n    data=json.dumps(body).encode(),\n    headers={"Content-Type": "application/json"${key}},\n)\nwith urllib.request.urlopen(request) as reply:\n    print(json.dumps(json.load(reply)["answers"], indent=2))\n`;
}
