package clientsetup

import (
	"fmt"
	"strings"
)

// maxName is the maximum length of a server's name in the mesh's configuration.
const maxName = 32

// ServerName returns the name of an entry's server in the mesh, if no other server has this name.
func ServerName(entry string) string { return serverName(entry) }

// serverName converts the name of an entry to a name that consists of 1 to 32 lower-case letters, digits or hyphens.
func serverName(entry string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(entry) {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	name := strings.Trim(b.String()[:min(b.Len(), maxName)], "-")
	if name == "" {
		return "server"
	}
	if strings.HasPrefix(name, "host-") { // reserved for the tools of clients
		return serverName("my-" + name)
	}
	return name
}

// freeName returns a name that is not taken. It tries the given name, then the name with the client's ID appended, and
// finally that longer name with a number appended.
func freeName(name, client string, taken func(string) bool) string {
	if !taken(name) {
		return name
	}
	for n := 1; ; n++ {
		suffix := "-" + client
		if n > 1 {
			suffix = fmt.Sprintf("%s-%d", suffix, n)
		}
		candidate := strings.TrimRight(name[:min(len(name), maxName-len(suffix))], "-") + suffix
		if !taken(candidate) {
			return candidate
		}
	}
}
