package locator

import (
	"errors"
	"strconv"
	"strings"
)

// A URL is an absolute URL in which RFC 3986 and the WHATWG URL standard find the same host. A URL is immutable. The
// zero URL is not valid.
type URL struct {
	// Scheme is the scheme in lower case, without the colon.
	Scheme string
	// Host is an ASCII host name in lower case without a final dot, or an IP address without brackets.
	Host string
	// Port is the port, from 1 to 65535. If the URL has no port, Port is the default port of the scheme, or 0 if the
	// scheme has no default port.
	Port int
	// Path is the path as it is written in the URL, but with upper-case hexadecimal digits in percent-encoding. If the URL
	// has no path, Path is "/".
	Path string
	// Bare is true if the URL has neither a query nor a fragment.
	Bare bool
}

// schemes contains the default ports of the schemes that the WHATWG URL standard calls special. It does not contain
// file, which has no port.
var schemes = map[string]int{"http": 80, "https": 443, "ws": 80, "wss": 443, "ftp": 21}

var (
	errNoURL     = errors.New("is not an absolute URL: an absolute URL has a scheme, :// and a host")
	errSlashes   = errors.New("has more or less than two slashes before its host")
	errUser      = errors.New("has a user before its host")
	errPort      = errors.New("has a port that is not a number from 1 to 65535 without leading zeros")
	errFile      = errors.New("is a file URL, which readers parse differently")
	errCase      = errors.New("has a host in upper case, which only some readers convert to lower case in this scheme")
	errURLChar   = errors.New("contains a character that must be percent-encoded in a URL")
	errPercent   = errors.New("contains a % without two hex digits")
	errNeedless  = errors.New("has a percent-encoded letter, digit, dot, slash or control character, which some readers decode")
	errDotted    = errors.New("has a path with . or .., which only some readers remove")
	errParams    = errors.New("has a path with a ;, after which some readers expect parameters")
	errTwoSlash  = errors.New("has a path with an empty segment, which some readers remove")
	errBaseQuery = errors.New("has a query or a fragment")
)

// ParseURL parses an absolute URL that has a host and at most [MaxBytes]. It returns an error if RFC 3986, the WHATWG
// standard or a well-known program interprets the string in a different way than the others. They differ if the string
// contains:
//   - a user before the host
//   - `\`, white space or unprintable characters
//   - more or less than two slashes before the host
//   - a host that is not a plain name, or an IP address in an unusual spelling
//   - port 0, or a colon without a port
//   - a path with parts that some programs remove or decode
func ParseURL(text string) (URL, error) {
	if err := checkText(text, MaxBytes); err != nil {
		return URL{}, err
	}
	scheme, rest, found := strings.Cut(text, ":")
	if !found || scheme == "" || !isLetter(scheme[0]) || !every(scheme, isSchemeChar) {
		return URL{}, errNoURL
	}
	u := URL{Scheme: lower(scheme)}
	if u.Scheme == "file" {
		return URL{}, errFile
	}
	rest, found = strings.CutPrefix(rest, "//")
	if !found || strings.HasPrefix(rest, "/") {
		return URL{}, errSlashes
	}
	end := strings.IndexAny(rest+"/", "/?#")
	if err := u.readAuthority(rest[:end]); err != nil {
		return URL{}, err
	}
	if err := u.readRest(rest[end:]); err != nil {
		return URL{}, err
	}
	return u, nil
}

func isSchemeChar(c byte) bool {
	return isLetter(c) || isDigit(c) || c == '+' || c == '-' || c == '.'
}

func (u *URL) readAuthority(text string) error {
	if strings.Contains(text, "@") {
		return errUser
	}
	host, port := text, ""
	if colon := strings.LastIndexByte(text, ':'); colon > strings.LastIndexByte(text, ']') {
		host, port = text[:colon], text[colon+1:]
		if port == "" {
			return errPort
		}
	}
	var err error
	if u.Port, err = u.readPort(port); err != nil {
		return err
	}
	if u.Host, err = parseHost(host); err != nil {
		return err
	}
	if _, special := schemes[u.Scheme]; !special && host != lower(host) {
		return errCase
	}
	if _, special := schemes[u.Scheme]; !special && strings.ContainsFunc(host, func(r rune) bool { return r > 0x7f }) {
		return errPuny
	}
	return nil
}

// readPort parses a port. It returns the default port of the scheme for the empty string.
func (u *URL) readPort(text string) (int, error) {
	if text == "" {
		return schemes[u.Scheme], nil
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 || text[0] == '0' || !every(text, isDigit) {
		return 0, errPort
	}
	return int(port), nil
}

func (u *URL) readRest(text string) error {
	for i := range len(text) {
		switch {
		case text[i] > 0x7f, text[i] == ' ', strings.IndexByte("\"<>^`{|}", text[i]) >= 0:
			return errURLChar
		case text[i] == '%' && !isEscape(text[i:]):
			return errPercent
		}
	}
	end := strings.IndexAny(text+"?", "?#")
	u.Bare = end == len(text)
	path := text[:end]
	if strings.ContainsAny(path, "[]") {
		return errURLChar
	}
	if path == "" {
		path = "/"
	}
	u.Path = path
	segments := u.segments()
	for i, segment := range segments {
		name, _, parameters := strings.Cut(segment, ";")
		switch {
		case name == "." || name == "..":
			return errDotted
		case parameters:
			return errParams
		case segment == "" && i < len(segments)-1:
			return errTwoSlash
		}
	}
	var err error
	u.Path, err = upperEscapes(path)
	return err
}

// segments returns the segments of the path. The last segment is empty if the path ends with a slash.
func (u *URL) segments() []string { return strings.Split(u.Path[1:], "/") }

// upperEscapes returns the path with upper-case percent-encoding. Because only some readers decode paths, it returns an
// error if the decoded path would be a different path.
func upperEscapes(path string) (string, error) {
	var out, decoded strings.Builder
	for i := 0; i < len(path); i++ {
		if path[i] != '%' {
			out.WriteByte(path[i])
			decoded.WriteByte(path[i])
			continue
		}
		code, err := strconv.ParseUint(path[i+1:i+3], 16, 8)
		c := byte(code)
		if err != nil || isLetter(c) || isDigit(c) || strings.IndexByte(`-._~/\;%`, c) >= 0 {
			return "", errNeedless
		}
		decoded.WriteByte(c)
		out.WriteString(strings.ToUpper(path[i : i+3]))
		i += 2
	}
	return out.String(), checkDecoded(decoded.String())
}

// checkDecoded returns an error if a decoded path contains parts that some readers interpret differently.
func checkDecoded(path string) error {
	if err := checkText(path, MaxBytes); err != nil {
		return errNeedless
	}
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" {
			continue
		}
		if err := checkSegment(segment); err != nil {
			return err
		}
	}
	return nil
}

// Under reports whether u has the same scheme, host and port as base, and its path is equal to or below the path of
// base. It compares the paths segment by segment.
func (u URL) Under(base URL) bool {
	if u.Scheme != base.Scheme || u.Host != base.Host || u.Port != base.Port || base.Host == "" {
		return false
	}
	root := base.segments()
	if root[len(root)-1] == "" {
		root = root[:len(root)-1]
	}
	return startsWith(u.segments(), root)
}

// ParseBase parses a URL for use as the argument of [URL.Under]. It returns an error if the URL has a query or a
// fragment.
func ParseBase(text string) (URL, error) {
	u, err := ParseURL(text)
	if err == nil && !u.Bare {
		return URL{}, errBaseQuery
	}
	return u, err
}
