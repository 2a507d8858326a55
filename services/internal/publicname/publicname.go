// Package publicname is what is shown of a name of a caller's making where it is not to tell what
// arguments say: in records, lists and notices.
package publicname

import "strings"

// most is how much of a name is shown, in bytes.
const most = 256

// Of is the name of a tool or prompt, a task or a URI as it may be shown: cut, and without what may
// hold a secret, which is a query, a fragment and who signs in.
func Of(name string) string {
	text := publicURI(name) // a name may be a URI as well
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// publicURI returns a URI without its query, its fragment and who signs in (RFC 3986,
// sections 3.2.1, 3.4 and 3.5). It reads any text, for nobody has checked that it is
// one; of data that stands in the URI itself only the scheme is left.
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

// authority is where a URI says who signs in where: behind "//", and behind what many
// take for it, such as `https:/` and `https:\\` (https://url.spec.whatwg.org). It is the
// end of what says nothing of the kind.
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
