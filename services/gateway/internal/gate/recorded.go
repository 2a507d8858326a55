package gate

import (
	"cmp"
	"strings"
)

// maxRecorded is how much of a name of a caller's making is recorded, in bytes.
const maxRecorded = 256

// Recorded is what records say that a request names: the name of a tool or prompt, a task, or
// a URI, cut, and without what may hold a secret: a query, a fragment and who signs in.
// Policy judges the whole.
func Recorded(m *Message) string {
	text := publicURI(cmp.Or(m.URI, m.Name, m.TaskID)) // a name may be a URI as well
	if len(text) <= maxRecorded {
		return text
	}
	return strings.ToValidUTF8(text[:maxRecorded], "") + "…"
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
