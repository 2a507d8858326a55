package locator

import (
	"errors"
	"net/netip"
	"strings"

	"golang.org/x/net/idna"
)

var (
	errHostForm    = errors.New("has a host that is not a plain name")
	errAddressForm = errors.New("has a host that some readers take for an IP address: write an IP address in four decimal parts, or in brackets as in RFC 5952")
	errPuny        = errors.New("has a host with letters that some readers convert differently")
)

// parseHost returns the host in a URL if RFC 3986 and the WHATWG URL standard agree on it. The result is an ASCII name
// in lower case without a final dot, or an IP address without brackets.
func parseHost(text string) (string, error) {
	// A character has at most four bytes, so a longer name can't be valid. It is refused before the conversion, because
	// the conversion takes quadratic time.
	if len(text) > 4*maxHost {
		return "", errHostForm
	}
	if inner, ok := strings.CutPrefix(text, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		address, err := netip.ParseAddr(inner)
		if !ok || err != nil || address.Zone() != "" || !address.Is6() || address.Is4In6() || address.String() != inner {
			return "", errAddressForm
		}
		return inner, nil
	}
	if endsInNumber(lower(text)) { // the name may end with a dot
		address, err := netip.ParseAddr(text)
		if err != nil || !address.Is4() || address.String() != text {
			return "", errAddressForm
		}
		return text, nil
	}
	name := strings.TrimSuffix(lower(text), ".")
	ascii, err := toASCII(name)
	if err != nil {
		return "", err
	}
	if endsInNumber(ascii) {
		return "", errAddressForm
	}
	return ascii, checkName(ascii)
}

// endsInNumber reports whether the last label in a name is a decimal or hexadecimal number. The WHATWG URL standard
// parses such a name as an IPv4 address.
func endsInNumber(name string) bool {
	name = strings.TrimSuffix(name, ".")
	last := name[strings.LastIndexByte(name, '.')+1:]
	if every(last, isDigit) {
		return true
	}
	hex, ok := strings.CutPrefix(last, "0x")
	return ok && (hex == "" || every(hex, isHex))
}

// checkName returns an error if a string is not a host name. A host name has at most 253 bytes. Each label has at most
// 63 bytes, which are lower-case letters, digits, `-` and `_`. A Punycode label must be equal to the encoding of its
// decoded letters.
func checkName(name string) error {
	if len(name) > maxHost {
		return errHostForm
	}
	for label := range strings.SplitSeq(name, ".") {
		if len(label) > maxLabel || !every(label, func(c byte) bool { return 'a' <= c && c <= 'z' || isDigit(c) || c == '-' || c == '_' }) {
			return errHostForm
		}
	}
	if !strings.Contains(name, "xn--") {
		return nil
	}
	letters, err := letterProfile(false).ToUnicode(name)
	if err != nil {
		return errPuny
	}
	if encoded, err := letterProfile(false).ToASCII(letters); err != nil || encoded != name || letters == name {
		return errPuny
	}
	return nil
}

// toASCII converts a host name to ASCII. It returns an error if older and newer versions of the standards convert a
// letter in the name differently.
func toASCII(name string) (string, error) {
	if !strings.ContainsFunc(name, func(r rune) bool { return r > 0x7f }) {
		return name, nil
	}
	ascii, err := letterProfile(false).ToASCII(name)
	if err != nil || strings.ToLower(name) != name { // some older readers convert more letters to lower case
		return "", errPuny
	}
	older, err := letterProfile(true).ToASCII(name)
	if err != nil || older != ascii {
		return "", errPuny
	}
	if letters, err := letterProfile(false).ToUnicode(ascii); err != nil || letters != name {
		return "", errPuny
	}
	return ascii, nil
}

// letterProfile returns the profile for converting host names with non-ASCII letters. It is UTS #46 in the variant of
// the WHATWG URL standard. If transitional is true, it is the earlier variant, which maps ß to ss.
func letterProfile(transitional bool) *idna.Profile {
	return idna.New(idna.MapForLookup(), idna.BidiRule(), idna.StrictDomainName(false), idna.CheckHyphens(false), idna.CheckJoiners(true), idna.Transitional(transitional))
}

// lower converts the ASCII letters in a string to lower case. It does not change other letters.
func lower(text string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, text)
}
