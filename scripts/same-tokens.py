#!/usr/bin/env python3
"""Shows that a commit renames and does nothing else.

    scripts/same-tokens.py COMMIT [COMMIT ..]

The Rust files of a commit and of the commit before it are read as tokens, without comments. Both sides must have the same
tokens in the same order, but for identifiers, each of which must have become one other identifier in the whole commit. What the
formatter changes is set aside: commas, braces, the order within `use` and `mod` items. Text in strings counts as it stands, but for
the names that format strings capture. Prints the renames found; ends with 1 where a file differs in anything else.
"""

import collections
import re
import subprocess
import sys

TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<raw>b?r(?P<hashes>\#*)".*?"(?P=hashes))|(?P<text>b?c?"(?:\\.|[^"\\])*")"""
    r"""|(?P<char>b?'(?:\\[^u]|\\u\{[^}]*\}|[^'\\])')|(?P<lifetime>'[A-Za-z_]\w*)|(?P<name>(?:r\#)?[A-Za-z_]\w*)"""
    r"""|(?P<number>\d\w*(?:\.\d\w*)?)|(?P<space>\s+)|(?P<other>.)""",
    re.S | re.X,
)
CAPTURE = re.compile(r"(?<!\{)\{([A-Za-z_]\w*)(?=[:}])")


def git(*arguments):
    """The output of a git command."""
    return subprocess.check_output(["git", *arguments], text=True)


def tokens(text):
    """The tokens of a file as (kind, text), and the names in its `use` and `mod` items."""
    plain, items = [], collections.Counter()
    item = None  # the keyword of the `use` or `mod` item that is being read
    for match in TOKEN.finditer(text):
        kind, word = match.lastgroup, match.group(0)
        if kind in ("comment", "space") or word == ",":
            continue
        if kind == "text":  # the formatter breaks long strings where it likes
            word = re.sub(r"\\\n\s*", "", word)
            plain += [("name", name) for name in CAPTURE.findall(word)]
            word = CAPTURE.sub("{", word)
        if kind == "name" and word in ("use", "mod"):
            item = word
        elif item and kind == "name":
            items[word] += 1
        elif item is None and word not in "{}":
            plain.append((kind, word))
        if word == ";" or item == "mod" and word == "{":
            item = None
    return plain, items


def changed_files(commit):
    """Pairs of a file's name before and after, for the Rust files that the commit changes."""
    for line in git("diff", "--name-status", "-M40%", f"{commit}^", commit).splitlines():
        status, *paths = line.split("\t")
        if paths[-1].endswith(".rs"):
            yield (None if status == "A" else paths[0]), (None if status == "D" else paths[-1])


def compare(commit):
    """What the commit renames, and in what else its files differ."""
    renames, faults, items = {}, [], []
    for old, new in changed_files(commit):
        if old is None or new is None:
            faults.append(f"{new or old}: a file {'added' if old is None else 'removed'}")
            continue
        before, used_before = tokens(git("show", f"{commit}^:{old}"))
        after, used_after = tokens(git("show", f"{commit}:{new}"))
        if len(before) != len(after):
            faults.append(f"{new}: {len(before)} tokens became {len(after)}")
        for (kind, word), (kind_after, word_after) in zip(before, after):
            if kind != kind_after or kind != "name" and word != word_after:
                faults.append(f"{new}: `{word}` became `{word_after}`")
                break
            if word != word_after and renames.setdefault((old, word), word_after) != word_after:
                faults.append(f"{new}: `{word}` became `{renames[old, word]}` and `{word_after}`")
                break
        items.append((new, used_before, used_after))
    known = collections.defaultdict(set)
    for (_, word), word_after in renames.items():
        known[word].add(word_after)
    for path, before, after in items:
        lost, gained = before - after, after - before
        unexplained = [word for word in lost if word in known and not known[word] & set(gained)]
        if sum(lost.values()) != sum(gained.values()) or unexplained:
            faults.append(f"{path}: its `use` and `mod` items lose {dict(lost)} and gain {dict(gained)}")
    return known, faults


def main():
    """Each commit's renames; whether it does anything else."""
    failed = False
    for commit in sys.argv[1:] or sys.exit(__doc__):
        renames, faults = compare(commit)
        print(git("log", "-1", "--format=%h %s", commit).strip())
        for word, others in sorted(renames.items()):
            print(f"  {word} -> {', '.join(sorted(others))}")
        for fault in faults:
            print(f"  DIFFERS {fault}")
        failed |= bool(faults)
        print("  other differences:", len(faults) or "none")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
