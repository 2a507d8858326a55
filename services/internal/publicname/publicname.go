// Package publicname shortens names that callers choose before the names are shown in records, lists and notifications.
// Shortened names don't reveal arguments.
package publicname

import "strings"

// maxShown is the maximum length of a shown name, in bytes.
const maxShown = 256

// Of returns the name of a tool, prompt or task, or a URI, in a form that may be shown. It truncates long names, and it
// omits the parts of a URI that may contain a secret, which are the query, the fragment and the user information.
func Of(name string) string {
	text := publicURI(name) // the name may be a URI
	if len(text) <= maxShown {
		return text
	}
	return strings.ToValidUTF8(text[:maxShown], "") + "…"
}

// publicURI returns a URI without its query, fragment and user information (RFC 3986, sections 3.2.1, 3.4 and 3.5). The
// argument need not be a valid URI. For a data URI, publicURI returns only the scheme.
func publicURI(uri string) string {
	if i := strings.IndexAny(uri, "?#"); i >= 0 {
		uri = uri[:i]
	}
	if len(uri) >= len("data:") && strings.EqualFold(uri[:len("data:")], "data:") {
		return uri[:len("data:")]
	}
	start := authorityStart(uri)
	host := uri[start:]
	if i := strings.IndexAny(host, `/\`); i >= 0 {
		host = host[:i]
	}
	signed := strings.LastIndexByte(host, '@') + 1
	return uri[:start] + uri[start+signed:]
}

// authorityStart returns the index at which the authority of a URI begins. The authority follows "//", or an
// alternative that many parsers accept, for example `https:/` and `https:\\` (https://url.spec.whatwg.org). If there is
// no authority, authorityStart returns the length of the URI.
func authorityStart(uri string) int {
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
