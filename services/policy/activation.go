package policy

import (
	"fmt"
	"strconv"
	"strings"
)

// An activation token consists of the time of the activation in nanoseconds and the first 16 digits of the revision. If
// the policies are stored, the number of the stored revision precedes them, after an `s`. Each part has a constant
// length, so tokens that are greater as text are later. Clocks decide only between states of the same stored revision.
type activationToken struct {
	// stored is true if the token has the number of a stored revision.
	stored bool
	number int64
	at     int64
	short  string
}

// storedTokenDigits is the number of digits of the number in a token, in base 36.
const storedTokenDigits = 10

// String returns the token as text.
func (t activationToken) String() string {
	text := strconv.FormatInt(t.at, 36) + "-" + t.short
	if !t.stored {
		return text
	}
	number := strconv.FormatInt(t.number, 36)
	return "s" + strings.Repeat("0", max(0, storedTokenDigits-len(number))) + number + "-" + text
}

// parseActivation returns the token that a text contains. It returns an error if the text contains none.
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

// token returns the activation token of the set.
func (a *activeSet) token() activationToken {
	t := activationToken{at: a.activated.UnixNano(), short: a.short()}
	if a.stored != nil {
		t.stored, t.number = true, a.stored.Number
	}
	return t
}

// activation returns the token with which a caller can require this revision or a later one.
func (a *activeSet) activation() string { return a.token().String() }

// short returns the first 16 hexadecimal digits of the revision, which are enough to distinguish revisions.
func (a *activeSet) short() string { return a.Revision()[:16] }

// reaches reports whether the set has the revision in an activation token, or was activated later. Replicas activate
// the same revision at different times, so an equal revision is sufficient, unless both are of stored revisions with
// different numbers: a rollback makes earlier documents active again, and its token must not be older than those of the
// revisions before it.
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
