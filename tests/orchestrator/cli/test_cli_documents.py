import time

import pytest

GOOD = """
name: small
tasks:
  - {dataset: digits, model: convnet, protocol: digits}
recipes: [ce]
"""
LAUGHS = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]\n" for n in range(1, 10))
LAUGHTER = "l0: &l0 [ha, ha]\n" + LAUGHS

# What tests/orchestrator/sweep/test_user_documents.py draws is not among them.
DOCUMENTS = {
    "laughs as a value": (GOOD + LAUGHTER + "seeds: *l9\n", "repetitions by aliases"),
    "few laughs as a value": (GOOD + f"seeds: [&a {list(range(99))}, *a]\n", "seeds[0]"),
    "laughs as a key": (f"{LAUGHTER}? *l9\n: 1\n", "repetitions by aliases"),
    "list within itself": (GOOD + "seeds: &a [*a]\n", "'a' is inside its own value"),
    "no such alias": (GOOD + "seeds: *a\n", "undefined alias"),
    "no int": (GOOD + "seeds: [!!int foo]\n", "'foo' is not a valid int"),
    "no timestamp": (GOOD + "seeds: [!!timestamp foo]\n", "'foo' is not a valid timestamp"),
    "no map": (GOOD + "tags: !!map foo\n", "expected a mapping"),
    "no binary": (GOOD + "tags: {a: !!binary é}\n", "line 6"),
    "list as a key": (GOOD + "? [a, b]\n: 1\n", "a list cannot be a key"),
    "number as a key": (GOOD + "7: 1\n", "7"),
    "merged keys": (GOOD + "tags: {<<: {a: b}}\n", "merge keys (<<) are not supported"),
    "deep list without end": (GOOD + "seeds: " + "[" * 100_000, "nested deeper than"),
    "10^400": (GOOD + f"seeds: [1{'0' * 400}]\n", "of at most 100 characters, got 401: "),
    "1.0e+400": (GOOD + "search: {accuracy_tolerance: 1.0e+400}\n", "got inf"),
    "50,000 sixties": (GOOD + f"seeds: [1{':59' * 40_000}]\n", "seeds[0]"),
    "huge threads": (GOOD + f"resources: {{train: {{cpu: {10**30}}}}}\n", "resources.train.cpu"),
    "huge split": (GOOD.replace("s}", f"s, split: {{test: {10**90}}}}}"), "leaves nothing of"),
    "storage of nobody": (GOOD + "storage: ~nouser/x\n", "storage: '~nouser/x' cannot be a path"),
    "archive of nobody": (GOOD.replace("digits,", "npz:~nouser/x.npz,", 1), "tasks[0].dataset"),
    "bucket as storage": (GOOD + "storage: s3://bucket/a b\n", "contains ' '; use s3://"),
    "bucket of images": (GOOD.replace("digits,", "'npz:s3://b/x.npz',", 1), "' is a URL"),
    "no storage": (GOOD + "storage: ''\n", "storage: is empty"),
    "long storage": (GOOD + f"storage: {'x' * 300}\n", "it is too long"),
    "long name": (GOOD.replace("small", "x" * 101), "up to 100 letters"),
    "NUL": (GOOD + "storage: a\0b\n", "special characters are not allowed"),
    "NUL in a path": (GOOD + 'storage: "a\\0b"\n', r"'a\x00b' cannot be a path"),
    "NUL in a data set": (GOOD.replace("digits,", '"npz:a\\0b",', 1), r"a\x00b' cannot be a path"),
    "half a character": (GOOD.replace("small", '"\\ud800"'), "has half a surrogate pair"),
    "no character": (GOOD + 'storage: "\\UFFFFFFFF"\n', "cannot be read as YAML"),
    "version without end": (f"%YAML 1.{'1' * 5000}\n---\n{GOOD}", "cannot be read as YAML"),
    "no address": (GOOD + "tracking: {uri: 'http://[host'}\n", ""),
    "longer key": (GOOD + f"? {'k' * 60_000}\n: 1\n", "unknown key; allowed are: name, plugins"),
    "long recipe": (GOOD.replace("[ce]", f"[{'k' * 60_000}]"), "recipe 'kkk"),
    "many recipes": (GOOD.replace("[ce]", str([f"k{n}" for n in range(5000)])), "'k0'"),
    "many wrong seeds": (GOOD + f"seeds: {['x'] * 5000}\n", "seeds[0]"),
    "long model": (GOOD.replace("convnet", "k" * 60_000), "tasks[0].model"),
    "turned direction": (GOOD.replace("small", r'"a\u202eb\u2028c"'), r"a\u202eb\u2028c"),
    "steered by a key": (GOOD + '"\\e[2J": 1\n', r"\x1b[2J: unknown key"),
    "steered by a tag": (GOOD + '? !<\x7f>\n: "\\e"\n', ""),
    "steered by a data set": (GOOD.replace("digits,", r'"\e[31m",', 1), r"\x1b[31m"),
    "markup": (GOOD.replace("small", '"[red]:smile:"'), "[red]:smile:"),
    "many unknown keys": (GOOD + "".join(f"bad{n}: 1\n" for n in range(200)), "bad0: unknown key"),
    "list of lists": (GOOD + f"seeds: [{'[a], ' * 20_000}]\n", "seeds"),
    "two documents": (GOOD + "---\n" + GOOD, "another document"),
}


@pytest.mark.full
@pytest.mark.parametrize("fault", DOCUMENTS)
def test_a_malformed_document_gets_one_line_without_long_parsing(calsweep, empty_folder, fault):
    content, expected = DOCUMENTS[fault]
    path = empty_folder / "bad.yaml"
    path.write_bytes(content.encode())
    calsweep("plan", "absent.yaml")  # Imports take their time only once.
    started = time.process_time()
    code, out, err = calsweep("plan", path)
    # What grows faster than the document takes minutes; a slow machine's seconds prove nothing.
    assert time.process_time() - started < 20
    assert (code, out) == (2, "")
    assert err.startswith("calsweep: ")
    assert err.endswith("\n")
    assert err[:-1].isprintable()
    assert len(err) < 300
    assert expected in err
    assert list(empty_folder.iterdir()) == [path]
