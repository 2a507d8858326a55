// Package publicname shortens names that callers choose for records, lists and notices, so that they don't reveal
// arguments.
package publicname

import "strings"

// most is how many bytes of a name are shown.
const most = 256

// Of returns the name of a tool or prompt, a task or a URI in the form that may be shown: shortened, and without
// parts that may contain a secret, which are a query, a fragment and user information.
func Of(name string) string {
	text := publicURI(name) // a name may be a URI too
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// publicURI returns a URI without its query, its fragment and its user information (RFC 3986, sections 3.2.1, 3.4 and
// 3.5). It accepts any text, which need not be a valid URI; of a data URI only the scheme is left.
func publicURI(uri string) string {
	if i := strings.IndexAny(uri, "?#"); i >= 0 {
		uri = uri[:i]
	}
	if len(uri) >= len("data:") && strings.EqualFold(uri[:len("data:")], "data:") {
		return uri[:len("data:")]
	}
	start := authority(uri)
	host := uri[start:]
	if i := strings.IndexAny(host, `/\`); i >= 0 {
		host = host[:i]
	}
	signed := strings.LastIndexByte(host, '@') + 1
	return uri[:start] + uri[start+signed:]
}

// authority matches the text before the authority of a URI: "//", and what many parsers accept as such, for example
// `https:/` and `https:\\` (https://url.spec.whatwg.org). It also matches the end of a text without an authority.
func authority(uri string) int {
	for i := 0; i < len(uri); {
		first := strings.IndexAny(uri[i:], `/\`)
		if first < 0 {
			break
		}
		first += i
		rest := strings.TrimLeft(uri[first:], `/\`)
		i = len(uri) - len(rest)
		if i-first > 1 || first > 0 && uri[first-1] == ':' {
			return i
		}
	}
	return len(uri)
}
