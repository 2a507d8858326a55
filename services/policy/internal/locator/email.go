package locator

import (
	"errors"
	"strings"
)

// These limits are in bytes. They come from RFC 5321, section 4.5.3.1, and RFC 1035, section 2.3.4.
const (
	maxEmail   = 254
	maxMailbox = 64
	maxHost    = 253
	maxLabel   = 63
)

// EmailDomain returns the domain of an email address in lower case. The address must be an ASCII mailbox (RFC 5321,
// section 4.1.2) that consists of a dot-string, an @ and a domain. EmailDomain returns an error for quotes, comments, a
// display name, a list of addresses and an address in brackets. It also returns an error for % and ! before the @,
// because these can make a mail server relay the mail to another domain. Finally, it returns an error for =? because it
// begins an encoded word (RFC 2047, section 2). Some readers decode encoded words, which can contain another @.
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

// isAtom reports whether a character may occur before the @ in an address. The allowed characters are atext (RFC 5322,
// section 3.2.3) without % and !.
func isAtom(c byte) bool {
	return isLetter(c) || isDigit(c) || strings.IndexByte("#$&'*+-/=?^_`{|}~", c) >= 0
}
