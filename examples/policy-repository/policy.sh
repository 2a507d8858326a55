#!/bin/sh
# policy.sh check | apply | rollback REVISION REASON
set -eu

fail() {
    echo "policy.sh: $*" >&2
    exit 1
}

# prepare writes the documents of $base to $work/policies.
prepare() {
    base=$(git rev-parse --verify "${BASE:?is the commit to compare with}^{commit}")
    commit=$(git rev-parse HEAD)
    tree=$(git rev-parse HEAD:policies)
    [ -z "$(git status --porcelain --ignored policies)" ] || fail "commit the files in policies first"
    if git ls-tree -r HEAD policies | grep -v '^100'; then fail "policies may have only regular files"; fi
    git merge-base --is-ancestor "$base" HEAD || fail "$BASE has newer commits: rebase, or merge it"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    git archive -o "$work/base.tar" "$base" policies
    tar -xf "$work/base.tar" -C "$work"
}

# gate runs a comparison. It fails if a call is opened, or may be, and no commit message acknowledges that.
gate() {
    code=0
    "$@" || code=$?
    case $code in
    0) return ;;
    1) line="Policy-Opens: $tree" ;;
    3) line="Policy-Unknown: $tree" ;;
    *) fail "the comparison ended with $code" ;;
    esac
    if git log --format=%B "$base..HEAD" | grep -Fqx "$line"; then
        echo "acknowledged: $line"
        return
    fi
    fail "if this is intended, add this line to a commit message: $line"
}

check() {
    sluice policy test policies --junit policy-tests.xml
    sluice policy lint policies
    gate sluice policy diff "$work/policies" policies
    [ -n "${SLUICE_ADDR:-}" ] || return 0
    sluice policy lint policies --live
    gate sluice policy diff policies
    code=0
    sluice policy replay policies --since 7d || code=$?
    case $code in
    0 | 1 | 3) ;; # it only informs
    *) fail "the replay ended with $code" ;;
    esac
}

apply() {
    : "${SLUICE_ADDR:?is the address of the mesh}"
    sluice policy revisions >"$work/revisions"
    active=$(awk '$2 == "active" {print $1}' "$work/revisions")
    [ -n "$active" ] || fail "no policy is active: apply the first one by hand"
    sluice policy revision "$active" --export "$work/active"
    if diff -r policies "$work/active" >/dev/null; then
        echo "revision $active has these documents already"
        sh smoke.sh
        return
    fi
    diff -r "$work/policies" "$work/active" ||
        fail "the active revision is not the policy of $base: revert the change on main, or run its pipeline again"
    if grep -F "$commit" "$work/revisions"; then
        fail "this commit was applied before: revert it, and make a new commit"
    fi
    check
    reason=$(git log -1 --format='%H %<(200,trunc)%s' | sed 's/ *$//')
    code=0
    sluice policy apply policies -m "$reason" --expect "$active" --yes >"$work/applied" || code=$?
    cat "$work/applied"
    [ $code = 0 ] || exit $code
    new=$(awk '/^applied: / {print $3}' "$work/applied")
    sh smoke.sh || {
        sluice policy rollback "$active" -m "smoke.sh failed after $commit" --expect "$new" --yes ||
            fail "smoke.sh failed, and revision $new is still active"
        fail "smoke.sh failed, and revision $active is active again: revert the change on main"
    }
}

case ${1:-} in
check)
    prepare
    check
    ;;
apply)
    prepare
    apply
    ;;
rollback) sluice policy rollback "${2:?is a revision}" -m "${3:?is the reason}" --yes ;;
*) fail "usage: policy.sh check | apply | rollback REVISION REASON" ;;
esac
