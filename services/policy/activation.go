package policy

import (
	"fmt"
	"strconv"
	"strings"
)

// activationToken identifies an activation of policies. The text of a token consists of the time of the activation in
// nanoseconds and the first 16 digits of the revision. If the policies are in the store, the text starts with `s` and
// the number of the stored revision. Each part has a constant length, so a later token is greater as text. If two
// tokens contain different numbers of stored revisions, the numbers decide which one is later, and the times do not
// matter.
type activationToken struct {
	// stored is true if the token contains the number of a stored revision.
	stored bool
	number int64
	at     int64
	short  string
}

// storedTokenDigits is how many base-36 digits a token has for the number of a stored revision.
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

// activation returns the text of the token of this activation. With this token, a caller can later require that a
// decision uses the revision of this activation or a newer one.
func (a *activeSet) activation() string { return a.token().String() }

// short returns the first 16 hexadecimal digits of the revision, which are enough to distinguish it from other
// revisions.
func (a *activeSet) short() string { return a.Revision()[:16] }

// reaches reports whether the set is at least as new as the activation with the given token. This is the case if the
// set has the same revision, because replicas activate a revision at different times, or if it was activated later. But
// if both tokens contain numbers of stored revisions and these numbers differ, only the numbers are compared. This is
// necessary because a rollback makes earlier documents active again, and its token must then be newer than the tokens
// of all earlier revisions.
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
