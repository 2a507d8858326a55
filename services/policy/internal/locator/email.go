package locator

import (
	"errors"
	"strings"
)

// These limits are from RFC 5321 and RFC 1035, in bytes.
const (
	maxEmail   = 254
	maxMailbox = 64
	maxHost    = 253
	maxLabel   = 63
)

// EmailDomain returns the domain of an email address in lower case. The address must be an ASCII mailbox as RFC 5321
// defines it: a dot-string, an @ and a domain. EmailDomain returns an error for quotes, comments, a display name, a
// list of addresses and an address in brackets. It also returns an error for % and ! before the @, because these
// characters can make a mail server relay the mail to another domain. Finally, it returns an error for =? because this
// begins an encoded word (RFC 2047), which some readers decode and which may contain another @.
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
	if strings.Contains(mailbox, "=?") {
		return "", errors.New("has =? before the @, with which an encoded word begins")
	}
	for part := range strings.SplitSeq(mailbox, ".") {
		if !every(part, isAtom) {
			return "", errors.New("is not a single plain address before the @")
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

// isAtom reports whether a character may occur before the @ of an address. The allowed characters are those of atext in
// RFC 5322, except for % and !.
func isAtom(c byte) bool {
	return isLetter(c) || isDigit(c) || strings.IndexByte("#$&'*+-/=?^_`{|}~", c) >= 0
}
