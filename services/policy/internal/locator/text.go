package locator

import (
	"errors"
	"fmt"
	"unicode"
	"unicode/utf8"
)

// MaxBytes limits the length of a path or URL in bytes. Most systems have the same limit for paths.
const MaxBytes = 4096

var (
	errEmpty     = errors.New("is empty")
	errUnprinted = errors.New("contains an unprintable character, or white space other than a space")
	errBackslash = errors.New(`contains a \, which some readers take for /`)
)

// checkText returns an error if a string can't be a path, a URL or an address. For example, the string must not have
// more than limit bytes or contain unprintable characters.
func checkText(text string, limit int) error {
	switch {
	case text == "":
		return errEmpty
	case len(text) > limit:
		return fmt.Errorf("is longer than %d bytes", limit)
	case !utf8.ValidString(text):
		return errors.New("is not UTF-8")
	}
	for _, r := range text {
		switch {
		case r == '\\':
			return errBackslash
		case ' ' <= r && r <= '~':
		case !unicode.IsPrint(r): // IsPrint is false for all white space except the space
			return errUnprinted
		}
	}
	return nil
}

func isASCII(text string) bool {
	for i := range len(text) {
		if text[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// isEscape reports whether a string begins with a percent sign and two hexadecimal digits.
func isEscape(text string) bool {
	return len(text) >= 3 && text[0] == '%' && isHex(text[1]) && isHex(text[2])
}

func isHex(c byte) bool {
	return isDigit(c) || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isLetter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }

// every reports whether a string is not empty and the given function is true for all its bytes.
func every(text string, of func(byte) bool) bool {
	for i := range len(text) {
		if !of(text[i]) {
			return false
		}
	}
	return text != ""
}
