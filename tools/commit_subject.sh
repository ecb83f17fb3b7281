#!/bin/sh
# A commit's subject is `area: verb ...`, at most 72 characters (see CONTRIBUTING.md).
subject=$(head -n 1 "$1")
case "$subject" in Merge\ *|Revert\ *|fixup!\ *|squash!\ *) exit 0 ;; esac
if [ "${#subject}" -gt 72 ]; then
  echo "the subject has ${#subject} characters; at most 72, the rest belongs below" >&2
  exit 1
fi
if ! printf '%s' "$subject" | grep -Eq '^[a-z][a-z0-9_/-]*: [^ ]'; then
  echo "the subject must read 'area: verb ...', such as 'train: lock a run while it is trained'" >&2
  exit 1
fi
