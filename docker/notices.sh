#!/usr/bin/env bash
# Prints what goes with the executable when it is passed on: each crate in it, where it is from, its licence, and the
# texts that its author ships with it. A text that several crates have is printed once. Fails where a crate has none.
#
#   docker/notices.sh > THIRD_PARTY_NOTICES
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Name, version, licence and repository of what is linked into the executable, but for what lies in this tree.
cargo tree --locked --package launcher --edges normal,no-proc-macro --prefix none --format '{p}|{l}|{r}' | grep -v ' (/' | sed 's/ (\*)//' \
    | sed 's/ (proc-macro)//; s/ v/|/' | sort -u > "$work/all"
[ -s "$work/all" ] || { echo "cargo tree names no crate" >&2; exit 1; }

# Texts of all crates that cargo has unpacked, by the name of their folders: `name-version|file`.
find "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/ -mindepth 2 -maxdepth 3 -type f ! -name '*.rs' \
    \( -iname 'licen[sc]e*' -o -iname 'copying*' -o -iname 'notice*' -o -iname 'unlicense*' -o -iname 'copyright*' \) \
    | awk -F / '{ for (i = 1; i <= NF; i++) if ($i == "registry") { print $(i + 3) "|" $0; next } }' | sort > "$work/unpacked"

# The texts of the crates in the executable. A crate without any is a part of a larger project, whose other crates have them.
awk -F '|' '
    FNR == NR { texts[$1] = texts[$1] $2 "\n"; next }
    { crates[++count] = $1 "-" $2; label[count] = $1 " " $2; repository[count] = $4 }
    END {
        for (i = 1; i <= count; i++) if (texts[crates[i]] && repository[i]) shared[repository[i]] = texts[crates[i]]
        for (i = 1; i <= count; i++) {
            found = texts[crates[i]] ? texts[crates[i]] : shared[repository[i]]
            if (!found) { print label[i] " comes without the text of its licence" > "/dev/stderr"; exit 1 }
            files = split(found, file, "\n")
            for (j = 1; j < files; j++) print label[i] "|" file[j]
        }
    }' "$work/unpacked" "$work/all" > "$work/files"
cut -d '|' -f 2 "$work/files" | xargs -d '\n' sha256sum | cut -d ' ' -f 1 | paste -d '|' "$work/files" - > "$work/sums"

echo 'text-generation-launcher contains software of others, under the licences below. Rust'"'"'s standard library is among it, under MIT OR'
echo 'Apache-2.0 (https://github.com/rust-lang/rust). Everything else in it, its pages and the demo model too, is under the licence in LICENSE.'
echo
while IFS='|' read -r name version licence repository; do
    echo "$name $version: $licence, ${repository:-https://crates.io/crates/$name}"
done < "$work/all"
line=$(printf '%120s' '' | tr ' ' -)
sort -t '|' -k 3,3 -k 1,1 -u "$work/sums" | awk -F '|' '
    $3 != sum { if (sum) print crates "|" file; sum = $3; file = $2; crates = $1; next }
    { crates = crates ", " $1 }
    END { print crates "|" file }' | sort | while IFS='|' read -r crates file; do
    printf '\n%s\n%s\n%s\n\n' "$line" "$(fold -s -w 120 <<< "$crates")" "$line"
    cat "$file"
done
