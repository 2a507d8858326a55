package locator

import (
	"errors"
	"slices"
	"strings"

	"golang.org/x/text/unicode/norm"
)

var (
	errScheme      = errors.New("begins with no scheme in lower case and a colon")
	errNothing     = errors.New("has nothing behind its scheme")
	errFragment    = errors.New("has a fragment, which some take away")
	errOneSlash    = errors.New("has one slash behind its scheme, where some want two or three")
	errFileHost    = errors.New("is a file URI with a host, which some take for none")
	errUsers       = errors.New("has more than one @ before its path")
	errHostEnd     = errors.New("has a host that ends with a dot or a colon, which some take away")
	errDefaultPort = errors.New("names the port that it has without")
	errDotEnd      = errors.New("has a segment that ends with a dot, which some take away")
	errComposed    = errors.New("has a character that is written in another way than the usual one (NFC)")
	errBraces      = errors.New("has a brace without its other one")
)

// CheckResource says why the URI of a resource is not plain; nil if it is plain. The URI may have any scheme. A plain
// URI has no other spelling that a reader could take for it, except those of [Readings] and of letters in another
// case. It is what RFC 3986 allows, with a lower-case scheme, without a fragment, without percent-encoding that is not
// needed or that some readers decode into a separator, without segments that some readers remove, and without parts
// before its path that some readers ignore.
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
	path, err := behindAuthority(uri, scheme, rest)
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

// behindAuthority checks the part between the scheme and the path, and returns the path, with a slash before it, and
// the query.
func behindAuthority(uri, scheme, rest string) (string, error) {
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

// checkURL checks a URL of a scheme that has a host and a port.
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

// checkAuthority checks the authority of an unknown scheme.
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
	if inner, is := strings.CutPrefix(host, "["); is { // an IPv6 address
		host = strings.ReplaceAll(strings.TrimSuffix(inner, "]"), ":", "")
	}
	if strings.ContainsAny(host, "[]:") {
		return errPort
	}
	return nil
}

// cutPort splits a host and its port; the port is empty if there is none.
func cutPort(text string) (host, port string) {
	if colon := strings.LastIndexByte(text, ':'); colon > strings.LastIndexByte(text, ']') {
		return text[:colon], text[colon+1:]
	}
	return text, ""
}

// checkQuery refuses percent-encoding in a query that is not needed.
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

// decoded returns a text without percent-encoding. Each % in it must begin an escape.
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

// CheckTemplate is [CheckResource] for a template of URIs (RFC 6570), with any values of its expressions.
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

// Readings returns a URI or template, and the URIs that some readers make of it by removing or adding parts: its
// query, parameters of segments, file streams, a fragment (each also with a percent-encoded separator), the user
// before the host, the port, and a final slash.
func Readings(uri string) []string {
	out := []string{uri}
	for _, change := range []func(string) string{withoutFragment, withoutQuery, withoutParameters, withoutStreams, withoutUser, withoutPort, otherEnd} {
		for _, text := range slices.Clone(out) {
			if other := change(text); !slices.Contains(out, other) {
				out = append(out, other)
			}
		}
	}
	return out
}

// upTo returns the text before the first of the ends.
func upTo(text string, ends ...string) string {
	for _, end := range ends {
		text, _, _ = strings.Cut(text, end)
	}
	return text
}

func withoutFragment(uri string) string { return upTo(uri, "%23") }

func withoutQuery(uri string) string { return upTo(uri, "?", "%3F", "%3f") }

func withoutParameters(uri string) string {
	path, query, asks := strings.Cut(uri, "?")
	var out []string
	for segment := range strings.SplitSeq(path, "/") {
		out = append(out, upTo(segment, ";", "%3B", "%3b"))
	}
	if path = strings.Join(out, "/"); asks {
		path += "?" + query
	}
	return path
}

// withoutStreams removes what some file systems take for a stream of a file: `a.txt::$DATA` is `a.txt`. A drive stays.
func withoutStreams(uri string) string {
	path, is := strings.CutPrefix(uri, "file:///")
	if !is {
		return uri
	}
	path, query, asks := strings.Cut(path, "?")
	segments := strings.Split(path, "/")
	for i, segment := range segments {
		drive := ""
		if i == 0 && len(segment) > 1 && isLetter(segment[0]) && segment[1] == ':' {
			drive, segment = segment[:2], segment[2:]
		}
		segments[i] = drive + upTo(segment, ":", "%3A", "%3a")
	}
	uri = "file:///" + strings.Join(segments, "/")
	if asks {
		uri += "?" + query
	}
	return uri
}

// inAuthority changes the authority of a URI that has one.
func inAuthority(uri string, change func(string) string) string {
	scheme, rest, has := strings.Cut(uri, "://")
	if !has || strings.ContainsAny(scheme, "/?") {
		return uri
	}
	end := strings.IndexAny(rest+"/", "/?")
	return scheme + "://" + change(rest[:end]) + rest[end:]
}

func withoutUser(uri string) string {
	return inAuthority(uri, func(authority string) string { return authority[strings.LastIndexByte(authority, '@')+1:] })
}

func withoutPort(uri string) string {
	return inAuthority(uri, func(authority string) string {
		user := authority[:strings.LastIndexByte(authority, '@')+1]
		host, _ := cutPort(authority[len(user):])
		return user + host
	})
}

func otherEnd(uri string) string {
	if strings.Contains(uri, "?") {
		return uri
	}
	if short, is := strings.CutSuffix(uri, "/"); is {
		return short
	}
	return uri + "/"
}
