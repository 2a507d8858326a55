package detect

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// These are the maximum lengths of the parts of an email address, in bytes (RFC 5321, section 4.5.3.1; RFC 1035,
// section 2.3.4).
const (
	maxLocalPart = 64
	maxDomain    = 255
	maxLabel     = 63
)

// findEmails finds email addresses without quotes and comments. Letters outside ASCII are allowed on both sides of the
// @ (RFC 6531).
func findEmails(text string) (found []span) {
	from := 0
	for {
		next := strings.IndexByte(text[from:], '@')
		if next < 0 {
			return found
		}
		sign := from + next
		start, end := localStart(text, max(from, sign-maxLocalPart), sign), domainEnd(text, sign+1)
		if from = sign + 1; start < sign && end > 0 && !isImageName(text[sign+1:end]) {
			found = append(found, span{start, end})
			from = end
		}
	}
}

// localStart returns the start of the local part that ends at the given offset. If there is no local part, it returns
// this offset.
func localStart(text string, low, end int) int {
	start := end
	for start > low {
		r, size := utf8.DecodeLastRuneInString(text[low:start])
		if !isAtext(r) && r != '.' {
			break
		}
		start -= size
	}
	for start < end && (text[start] == '.' || strings.IndexByte("'`*=/{|}", text[start]) >= 0) { // punctuation before the address
		start++
	}
	if dots := strings.LastIndex(text[start:end], ".."); dots >= 0 {
		start += dots + len("..")
	}
	if start < end && text[end-1] == '.' {
		return end
	}
	return start
}

// isAtext reports whether a rune may be in an atom (RFC 5322, section 3.2.3; RFC 6532).
func isAtext(r rune) bool {
	if r < utf8.RuneSelf {
		return isAlphanumeric(byte(r)) || strings.ContainsRune("!#$%&'*+-/=?^_`{|}~", r)
	}
	return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.IsMark(r))
}

// domainEnd returns the end of the domain that begins at an offset, or 0 if there is none. The domain has at least two
// labels. The last label has at least two characters and no digits, unless it is an encoded internationalized label
// (RFC 5891).
func domainEnd(text string, start int) int {
	end, labels := 0, 0
	for i := start; ; i++ {
		stop := labelEnd(text, i)
		for stop > i && text[stop-1] == '-' {
			stop--
		}
		label := text[i:stop]
		if label == "" || label[0] == '-' || len(label) > maxLabel || stop-start > maxDomain {
			return end
		}
		if labels++; labels > 1 && isTopLevel(label) {
			end = stop
		}
		if i = stop; at(text, i) != '.' {
			if !isTopLevel(label) {
				return 0
			}
			return end
		}
	}
}

func labelEnd(text string, i int) int {
	for i < len(text) {
		r, size := utf8.DecodeRuneInString(text[i:])
		if r >= utf8.RuneSelf && (r == utf8.RuneError || !unicode.IsLetter(r) && !unicode.IsMark(r)) || r < utf8.RuneSelf && !isAlphanumeric(byte(r)) && r != '-' {
			break
		}
		i += size
	}
	return i
}

func isTopLevel(label string) bool {
	if len(label) < 2 {
		return false
	}
	return strings.HasPrefix(strings.ToLower(label), "xn--") || !strings.ContainsAny(label, "0123456789-")
}

// isImageName reports whether a domain is in fact the end of a high-resolution image's file name, such as icon@2x.png.
func isImageName(domain string) bool {
	return len(domain) > 3 && isDigit(domain[0]) && domain[1] == 'x' && domain[2] == '.'
}
