package locator

import (
	"errors"
	"net/netip"
	"strings"

	"golang.org/x/net/idna"
)

var (
	errHostForm    = errors.New("has a host that is not a plain name")
	errAddressForm = errors.New("has a host that some take for an IP address: write those in four decimal parts, or in brackets as RFC 5952 does")
	errPuny        = errors.New("has a host whose letters some read differently")
)

// parseHost reads the host of a URL as RFC 3986 and the WHATWG standard do: a name in lower case and ASCII without its
// final dot, or an IP address in its one usual spelling, for IPv6 without brackets.
func parseHost(text string) (string, error) {
	if len(text) > 4*maxHost { // up to four bytes for each letter; conversion to ASCII takes quadratic time
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
	if endsInNumber(lower(text)) { // also before a final dot
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

// endsInNumber reports whether the WHATWG standard takes a name for an IPv4 address: its last label is a number,
// decimal or hexadecimal.
func endsInNumber(name string) bool {
	name = strings.TrimSuffix(name, ".")
	last := name[strings.LastIndexByte(name, '.')+1:]
	if every(last, isDigit) {
		return true
	}
	hex, ok := strings.CutPrefix(last, "0x")
	return ok && (hex == "" || every(hex, isHex))
}

// checkName refuses what is not a host name: labels of letters, digits, `-` and `_`, each of at most 63 bytes, in
// total at most 253. A label in punycode must be the encoding of its letters.
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
	if again, err := letterProfile(false).ToASCII(letters); err != nil || again != name || letters == name {
		return errPuny
	}
	return nil
}

// toASCII returns a name in ASCII if the standards do not map its letters, so that old and new readers agree.
func toASCII(name string) (string, error) {
	if !strings.ContainsFunc(name, func(r rune) bool { return r > 0x7f }) {
		return name, nil
	}
	ascii, err := letterProfile(false).ToASCII(name)
	if err != nil {
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

// letterProfile returns the profile for names with letters outside of ASCII: UTS 46 as in the WHATWG standard or, with
// before, as earlier, when ß was ss.
func letterProfile(before bool) *idna.Profile {
	return idna.New(idna.MapForLookup(), idna.BidiRule(), idna.StrictDomainName(false), idna.CheckHyphens(false), idna.CheckJoiners(true), idna.Transitional(before))
}

// lower returns the text with the ASCII letters in lower case, and all others unchanged.
func lower(text string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, text)
}
