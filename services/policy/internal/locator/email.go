package locator

import (
	"errors"
	"strings"
)

// Limits of RFC 5321 and RFC 1035, in bytes.
const (
	maxEmail   = 254
	maxMailbox = 64
	maxHost    = 253
	maxLabel   = 63
)

// EmailDomain returns the domain of one bare address, in lower case: a mailbox of RFC 5321 with a dot-string and a
// domain, in ASCII. Quotes, comments, a name, a list, and an address in brackets are errors. So are % and ! before the
// @, which can make a server relay the mail elsewhere.
func EmailDomain(text string) (string, error) {
	if err := checkText(text, maxEmail); err != nil {
		return "", err
	}
	mailbox, domain, found := strings.Cut(text, "@")
	switch {
	case !found:
		return "", errors.New("has no @")
	case strings.Contains(domain, "@"):
		return "", errors.New("has more than one @")
	case len(mailbox) > maxMailbox:
		return "", errors.New("has more than 64 bytes before the @")
	}
	for part := range strings.SplitSeq(mailbox, ".") {
		if !every(part, isAtom) {
			return "", errors.New("is not written as one plain address before the @")
		}
	}
	domain = lower(domain)
	if strings.HasSuffix(domain, ".") || strings.Contains(domain, "_") {
		return "", errHostForm
	}
	if err := checkName(domain); err != nil {
		return "", err
	}
	if endsInNumber(domain) {
		return "", errAddressForm
	}
	return domain, nil
}

// isAtom reports whether a character may be before the @ (RFC 5322's atext) and does not route.
func isAtom(c byte) bool {
	return isLetter(c) || isDigit(c) || strings.IndexByte("#$&'*+-/=?^_`{|}~", c) >= 0
}
