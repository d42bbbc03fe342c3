import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from jevify.cli import schema

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parents[2]


@pytest.fixture
def printed(capsys):
    def call(document):
        parser = argparse.ArgumentParser()
        schema.add_parser(parser.add_subparsers())
        args = parser.parse_args(["schema", document])
        assert args.run(args) == 0
        return json.loads(capsys.readouterr().out)

    return call


def variants(node):
    """The alternatives of a node by JSON type."""
    return {option.get("type"): option for option in node["anyOf"]}


def fits(value, node, root):
    """Check the keywords that our schemas use."""
    if "$ref" in node:
        return fits(value, root["$defs"][node["$ref"].rsplit("/", 1)[1]], root)
    for keyword in ("anyOf", "oneOf"):
        if keyword in node:
            return sum(fits(value, option, root) for option in node[keyword]) >= 1
    kinds = {
        "object": dict,
        "array": list,
        "string": str,
        "boolean": bool,
        "integer": int,
        "null": type(None),
    }
    if "type" in node and not isinstance(value, kinds[node["type"]]):
        return False
    if "const" in node and value != node["const"]:
        return False
    if "enum" in node and value not in node["enum"]:
        return False
    if isinstance(value, dict):
        known, rest = node.get("properties", {}), node.get("additionalProperties", True)
        return (
            set(node.get("required", [])) <= set(value)
            and node.get("minProperties", 0) <= len(value) <= node.get("maxProperties", 10**9)
            and all(
                fits(item, known[key], root) if key in known else rest is True or (rest and fits(item, rest, root))
                for key, item in value.items()
            )
        )
    if isinstance(value, list):
        return node.get("minItems", 0) <= len(value) <= node.get("maxItems", 10**9) and all(
            fits(item, node.get("items", {}), root) for item in value
        )
    return True


def test_workflow_schema(printed):
    root = printed("workflow")
    assert root["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert (root["type"], root["required"], root["additionalProperties"]) == ("object", ["questions"], False)
    questions = root["properties"]["questions"]
    assert questions["minProperties"] == 1
    assert questions["propertyNames"] == {"minLength": 1}
    assert [ref["$ref"] for ref in questions["additionalProperties"]["oneOf"]] == [
        "#/$defs/Choice",
        "#/$defs/Noul",
        "#/$defs/Score",
    ]

    required = {name: set(root["$defs"][name]["required"]) for name in ("Choice", "Noul", "Score")}
    assert required == {"Choice": {"type", "criteria"}, "Noul": {"type"}, "Score": {"type", "criteria"}}
    assert all(part["additionalProperties"] is False for part in root["$defs"].values())
    criteria = variants(root["$defs"]["Choice"]["properties"]["criteria"])
    assert set(criteria) == {"object", "array"}
    assert (criteria["object"]["minProperties"], criteria["object"]["maxProperties"]) == (1, 255)
    assert (criteria["array"]["minItems"], criteria["array"]["maxItems"]) == (1, 255)
    assert criteria["array"]["uniqueItems"] is True
    assert set(variants(criteria["object"]["additionalProperties"])) == {"string", "null"}
    levels = root["$defs"]["Score"]["properties"]["criteria"]
    assert (levels["type"], levels["minItems"], levels["maxItems"]) == ("array", 1, 255)
    assert set(root["$defs"]["NoulCriteria"]["properties"]) == {"true", "false"}


def test_request_schema(printed):
    root = printed("request")
    assert list(root["properties"]) == ["context", "prompt", "prompts", "messages"]
    assert root["additionalProperties"] is False
    assert "required" not in root
    message = root["$defs"]["Message"]
    assert message["properties"]["role"]["enum"] == ["system", "developer", "user", "assistant", "tool"]
    assert message["properties"]["content"]["type"] == "string"
    assert message["required"] == ["role", "content"]
    assert variants(root["properties"]["messages"])["array"]["minItems"] == 1


def test_input_schema(printed):
    root = printed("input")
    assert root["required"] == ["context", "questions"]
    assert root["additionalProperties"] is False
    assert set(variants(root["properties"]["context"])) == {"string", "object", "array"}
    labels = variants(root["properties"]["expected_labels"])["object"]
    assert set(variants(labels["additionalProperties"])) == {"string", "boolean", "integer"}


def test_the_schemas_fit_what_is_accepted(printed):
    shipped = json.loads((ROOT / "workflow.json").read_text("utf-8"))
    workflow, request, combined = printed("workflow"), printed("request"), printed("input")
    assert fits(shipped, workflow, workflow)
    assert fits({"questions": {"q": {"type": "choice", "criteria": ["a", "b"]}}}, workflow, workflow)
    assert fits({"questions": {"q": {"type": "noul", "instructions": None}}}, workflow, workflow)
    assert not fits({"questions": {"q": {"instructions": "Is it?"}}}, workflow, workflow)
    assert not fits(shipped | {"context": "x"}, workflow, workflow)
    turn = {"role": "user", "content": "x"}
    assert fits({"context": {"a": 1}, "prompts": {"q": "?"}, "messages": [turn]}, request, request)
    assert not fits({"messages": [turn | {"role": "bot"}]}, request, request)
    labels = {"department": "billing", "refund_requested": True, "severity": 2}
    assert fits({"context": "x", "expected_labels": labels, **shipped}, combined, combined)


def test_an_unknown_document_is_refused():
    parser = argparse.ArgumentParser()
    schema.add_parser(parser.add_subparsers())
    with pytest.raises(SystemExit) as caught:
        parser.parse_args(["schema", "answer"])
    assert caught.value.code == 2


def test_files_are_checked_without_loading_the_model_libraries():
    code = "import sys, jevify.cli.schema, jevify.decide.answers\nprint({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
