"""Records the advisories of the RustSec database, without their texts, in advisories.txt.

    record_advisories.py REPOSITORY        a clone of the database, https://github.com/rustsec/advisory-db

A row has the id, the crate, the kind (`vulnerability`, or what the database calls informational), and the versions that
are not affected, patched and unaffected ones together: requirements of Cargo, separated by `;`. Withdrawn advisories are
left out. `tidy/advisories.rs` compares the table with Cargo.lock.
"""

import pathlib
import subprocess
import sys
import tomllib


def git(repository, *arguments):
    return subprocess.run(["git", "-C", repository, *arguments], check=True, capture_output=True, text=True).stdout


def main():
    repository = sys.argv[1]
    commit, date = git(repository, "log", "-1", "--format=%H %cs").split()
    rows = []
    for path in git(repository, "ls-tree", "-r", "--name-only", "HEAD", "crates/").split():
        text = git(repository, "show", f"HEAD:{path}")
        head = tomllib.loads(text.split("```toml\n", 1)[1].split("\n```", 1)[0])
        advisory, versions = head["advisory"], head["versions"]
        if "withdrawn" not in advisory:
            spared = versions.get("patched", []) + versions.get("unaffected", [])
            kind = advisory.get("informational", "vulnerability")
            rows.append("\t".join([advisory["id"], advisory["package"], kind, ";".join(spared)]))
    lines = [f"# RustSec advisory database, commit {commit} of {date}", *sorted(rows)]
    (pathlib.Path(__file__).parent / "advisories.txt").write_text("\n".join(lines) + "\n")
    print(f"{len(rows)} advisories of {date}")


main()
