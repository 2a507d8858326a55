package locator

import (
	"errors"
	"slices"
	"strings"

	"golang.org/x/text/unicode/norm"
)

var (
	errScheme      = errors.New("does not begin with a scheme in lower case and a colon")
	errNothing     = errors.New("has nothing after its scheme")
	errFragment    = errors.New("has a fragment, which some readers remove")
	errOneSlash    = errors.New("has one slash after its scheme, where some readers expect two or three")
	errFileHost    = errors.New("is a file URI with a host, which some readers ignore")
	errUsers       = errors.New("has more than one @ before its path")
	errHostEnd     = errors.New("has a host that ends with a dot or a colon, which some readers remove")
	errDefaultPort = errors.New("has the default port of its scheme, which some readers remove")
	errDotEnd      = errors.New("has a segment that ends with a dot, which some readers remove")
	errComposed    = errors.New("has a character that is not in its normal form (NFC)")
	errBraces      = errors.New("has an opening or closing brace without the other")
)

// CheckResource returns nil if a resource's URI is plain. Otherwise it returns an error with the reason. The URI may
// have any scheme.
//
// All servers interpret a plain URI as the same resource, with two exceptions: some servers ignore case, and some
// remove or add the parts that [Readings] lists. A plain URI conforms to RFC 3986 and has:
//   - a scheme in lower case
//   - no fragment
//   - no percent-encoding that is not needed, or that some servers decode to a separator
//   - no segments that some servers remove
//   - no parts before the path that some servers ignore
func CheckResource(uri string) error {
	if err := checkText(uri, MaxBytes); err != nil {
		return err
	}
	for i := range len(uri) {
		if c := uri[i]; c <= ' ' || c > 0x7e || strings.IndexByte("\"<>^`{|}", c) >= 0 {
			return errURLChar
		}
	}
	scheme, rest, found := strings.Cut(uri, ":")
	switch {
	case !found || scheme == "" || !isLetter(scheme[0]) || !every(scheme, isSchemeChar) || scheme != lower(scheme):
		return errScheme
	case rest == "":
		return errNothing
	case strings.Contains(rest, "#"):
		return errFragment
	}
	path, err := pathAndQuery(uri, scheme, rest)
	if err != nil {
		return err
	}
	var u URL
	if err := u.readRest(path); err != nil {
		return err
	}
	path, query, _ := strings.Cut(path, "?")
	for segment := range strings.SplitSeq(path, "/") {
		if name, _, _ := strings.Cut(segment, ";"); strings.HasSuffix(name, ".") {
			return errDotEnd
		}
	}
	if !norm.NFC.IsNormalString(decoded(path)) {
		return errComposed
	}
	return checkQuery(query)
}

// pathAndQuery checks the part of a URI between the scheme and the path. It returns the path, which begins with a
// slash, and the query. The parameter rest is the part of the URI after the scheme and its colon.
func pathAndQuery(uri, scheme, rest string) (string, error) {
	_, special := schemes[scheme]
	authority, has := strings.CutPrefix(rest, "//")
	switch {
	case special:
		if err := checkURL(uri); err != nil {
			return "", err
		}
	case !has && (rest[0] == '/' || scheme == "file"):
		return "", errOneSlash
	case !has:
		return "/" + rest, nil
	}
	end := strings.IndexAny(authority+"/", "/?")
	path := authority[end:]
	authority = authority[:end]
	if scheme == "file" && authority != "" {
		return "", errFileHost
	}
	if !special {
		if err := checkAuthority(authority); err != nil {
			return "", err
		}
	}
	return path, nil
}

func checkURL(uri string) error {
	u, err := ParseURL(uri)
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(uri, "://")
	authority := rest[:strings.IndexAny(rest+"/", "/?")]
	host, port := cutPort(authority)
	switch {
	case strings.HasSuffix(host, "."):
		return errHostEnd
	case port != "" && u.Port == schemes[u.Scheme]:
		return errDefaultPort
	}
	return nil
}

func checkAuthority(authority string) error {
	if strings.Contains(authority, "%") {
		return errNeedless
	}
	if strings.Count(authority, "@") > 1 {
		return errUsers
	}
	host, port := cutPort(authority[strings.IndexByte(authority, '@')+1:])
	switch {
	case strings.HasSuffix(host, "."), strings.HasSuffix(authority, ":"):
		return errHostEnd
	case port != "" && (!every(port, isDigit) || port[0] == '0'):
		return errPort
	}
	if inner, is := strings.CutPrefix(host, "["); is { // remove the brackets and colons of an IPv6 address
		host = strings.ReplaceAll(strings.TrimSuffix(inner, "]"), ":", "")
	}
	if strings.ContainsAny(host, "[]:") {
		return errPort
	}
	return nil
}

// cutPort splits a string into host and port. The port is empty if the string has none.
func cutPort(text string) (host, port string) {
	if colon := strings.LastIndexByte(text, ':'); colon > strings.LastIndexByte(text, ']') {
		return text[:colon], text[colon+1:]
	}
	return text, ""
}

// checkQuery returns an error if a query contains unnecessary percent-encoding.
func checkQuery(query string) error {
	for i := range len(query) {
		if query[i] != '%' {
			continue
		}
		if c := decoded(query[i : i+3])[0]; c < ' ' || c == 0x7f || isLetter(c) || isDigit(c) || strings.IndexByte("-._~", c) >= 0 {
			return errNeedless
		}
	}
	return nil
}

// decoded decodes the percent-encoding in a string. Each % in the string must be followed by two hexadecimal digits.
func decoded(text string) string {
	value := func(c byte) byte {
		if isDigit(c) {
			return c - '0'
		}
		return lower(string(c))[0] - 'a' + 10
	}
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if !isEscape(text[i:]) {
			out.WriteByte(text[i])
			continue
		}
		out.WriteByte(value(text[i+1])<<4 | value(text[i+2]))
		i += 2
	}
	return out.String()
}

// CheckTemplate returns nil if a URI template (RFC 6570) expands to a plain URI whenever the values of its expressions
// are plain. Otherwise it returns an error. [CheckResource] defines plain URIs.
func CheckTemplate(template string) error {
	var out strings.Builder
	for {
		text, rest, open := strings.Cut(template, "{")
		out.WriteString(text)
		if !open {
			return CheckResource(out.String())
		}
		var closed bool
		if _, template, closed = strings.Cut(rest, "}"); !closed {
			return errBraces
		}
		out.WriteByte('x')
	}
}

// Readings returns the given URI or URI template, and the other URIs as which some servers interpret it. Some servers
// remove the port, or the user before the host. Some remove or add a final slash. Some remove the query, the parameters
// of segments, the names of file streams, or a fragment. A few of these servers remove such a part even if its first
// character is percent-encoded.
func Readings(uri string) []string {
	out := []string{uri}
	for _, change := range []func(string) string{withoutFragment, withoutQuery, withoutParameters, withoutStreams, withoutUser, withoutPort, toggleFinalSlash} {
		for _, text := range slices.Clone(out) {
			if other := change(text); !slices.Contains(out, other) {
				out = append(out, other)
			}
		}
	}
	return out
}

// cutAt returns the part of a string before the first occurrence of any of the given ends.
func cutAt(text string, ends ...string) string {
	for _, end := range ends {
		text, _, _ = strings.Cut(text, end)
	}
	return text
}

func withoutFragment(uri string) string { return cutAt(uri, "%23") }

func withoutQuery(uri string) string { return cutAt(uri, "?", "%3F", "%3f") }

func withoutParameters(uri string) string {
	path, query, hasQuery := strings.Cut(uri, "?")
	var out []string
	for segment := range strings.SplitSeq(path, "/") {
		out = append(out, cutAt(segment, ";", "%3B", "%3b"))
	}
	if path = strings.Join(out, "/"); hasQuery {
		path += "?" + query
	}
	return path
}

// withoutStreams removes the names of file streams (NTFS) from a file URI. For example, `a.txt::$DATA` becomes `a.txt`.
// It does not remove a drive letter.
func withoutStreams(uri string) string {
	path, is := strings.CutPrefix(uri, "file:///")
	if !is {
		return uri
	}
	path, query, hasQuery := strings.Cut(path, "?")
	segments := strings.Split(path, "/")
	for i, segment := range segments {
		drive := ""
		if i == 0 && len(segment) > 1 && isLetter(segment[0]) && segment[1] == ':' {
			drive, segment = segment[:2], segment[2:]
		}
		segments[i] = drive + cutAt(segment, ":", "%3A", "%3a")
	}
	uri = "file:///" + strings.Join(segments, "/")
	if hasQuery {
		uri += "?" + query
	}
	return uri
}

// mapAuthority replaces the authority of a URI with the result of change. The authority consists of user, host and
// port. If the URI has no authority, mapAuthority returns the URI unchanged.
func mapAuthority(uri string, change func(string) string) string {
	scheme, rest, has := strings.Cut(uri, "://")
	if !has || strings.ContainsAny(scheme, "/?") {
		return uri
	}
	end := strings.IndexAny(rest+"/", "/?")
	return scheme + "://" + change(rest[:end]) + rest[end:]
}

func withoutUser(uri string) string {
	return mapAuthority(uri, func(authority string) string { return authority[strings.LastIndexByte(authority, '@')+1:] })
}

func withoutPort(uri string) string {
	return mapAuthority(uri, func(authority string) string {
		user := authority[:strings.LastIndexByte(authority, '@')+1]
		host, _ := cutPort(authority[len(user):])
		return user + host
	})
}

func toggleFinalSlash(uri string) string {
	if strings.Contains(uri, "?") {
		return uri
	}
	if short, is := strings.CutSuffix(uri, "/"); is {
		return short
	}
	return uri + "/"
}
