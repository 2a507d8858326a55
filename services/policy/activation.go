package policy

import (
	"fmt"
	"strconv"
	"strings"
)

// activationToken identifies one activation of policy documents. Its text is `TIME-REVISION`, or
// `sNUMBER-TIME-REVISION` if the documents are in the store:
//
//   - NUMBER is the number of the stored revision, in base 36 and padded with zeros.
//   - TIME is the time of the activation in nanoseconds, in base 36.
//   - REVISION is the first 16 digits of the revision.
//
// The parts have constant lengths, so the text of a later token is greater in a comparison of strings. If two tokens
// contain different revision numbers, the token with the greater number is later, regardless of the times.
type activationToken struct {
	stored bool
	number int64
	at     int64
	short  string
}

// storedTokenDigits is the number of base-36 digits in a token for the number of a stored revision.
const storedTokenDigits = 10

// String returns the text of the token.
func (t activationToken) String() string {
	text := strconv.FormatInt(t.at, 36) + "-" + t.short
	if !t.stored {
		return text
	}
	number := strconv.FormatInt(t.number, 36)
	return "s" + strings.Repeat("0", max(0, storedTokenDigits-len(number))) + number + "-" + text
}

// parseActivation parses an activation token. It returns an error if the text is not a token.
func parseActivation(text string) (t activationToken, err error) {
	rest := text
	if number, ok := strings.CutPrefix(text, "s"); ok && strings.Count(text, "-") == 2 {
		number, rest, _ = strings.Cut(number, "-")
		t.stored = true
		if t.number, err = strconv.ParseInt(number, 36, 64); err != nil {
			return t, fmt.Errorf("read the activation token: %w", err)
		}
	}
	at, short, ok := strings.Cut(rest, "-")
	if !ok {
		return t, fmt.Errorf("%q is not an activation token", text)
	}
	t.short = short
	if t.at, err = strconv.ParseInt(at, 36, 64); err != nil {
		return t, fmt.Errorf("read the activation token: %w", err)
	}
	return t, nil
}

// token returns the token of this activation.
func (a *activeSet) token() activationToken {
	t := activationToken{at: a.activated.UnixNano(), short: a.short()}
	if a.stored != nil {
		t.stored, t.number = true, a.stored.Number
	}
	return t
}

// activation returns the text of the token for this activation. A caller can send this text in a later request, which
// then requires a decision made with the revision of this activation or a newer one.
func (a *activeSet) activation() string { return a.token().String() }

// short returns the first 16 hexadecimal digits of the revision, which are enough to distinguish it from other
// revisions.
func (a *activeSet) short() string { return a.Revision()[:16] }

// reaches reports whether the set is at least as new as the activation with the given token. If both have numbers of
// stored revisions and the numbers differ, only the numbers are compared. A rollback activates earlier documents under
// a new number, so its token is newer than the tokens of all earlier revisions. Otherwise the set must have the same
// revision or a later activation time. The time alone is not enough, because replicas activate the same revision at
// different times.
func (a *activeSet) reaches(activation string) bool {
	want, err := parseActivation(activation)
	if err != nil {
		return false
	}
	have := a.token()
	if have.stored && want.stored && have.number != want.number {
		return have.number > want.number
	}
	return want.short == have.short || have.stored == want.stored && want.at < have.at
}
