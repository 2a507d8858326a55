package catalogpages

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// plainName is what a name is that can be a file's as it stands, on every system: in lower
// case, for some systems take two names for one that differ in case alone, and without
// `~`, which tells all others from these.
var plainName = regexp.MustCompile(`^[a-z0-9_][a-z0-9_.-]{0,99}$`)

// reserved are names that Windows keeps for devices, whatever follows the first dot.
var reserved = regexp.MustCompile(`^(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)`)

// maxSlug is how many characters of a name are kept where it can't be a file's.
const maxSlug = 40

// stem is the name of a file, without its extension, for a server or a tool of any name.
// It is made of lower-case letters, digits and `_ . - ~`, of 1 to 100 characters, and two
// names never have the same. It depends on the name alone, so links hold from one export to
// the next: a name that can't be a file's has a readable part and the first half of
// its SHA-256. That half is long enough that nobody finds two names for it (2^64 tries).
func stem(name string) string {
	if plainName.MatchString(name) && !reserved.MatchString(name) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return slug(name) + "~" + hex.EncodeToString(sum[:len(sum)/2])
}

// slug is what a name looks like, as far as a file's name can show it.
func slug(name string) string {
	var out strings.Builder
	for _, r := range strings.ToLower(name) {
		switch {
		case out.Len() == maxSlug:
			return out.String()
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '_':
			out.WriteRune(r)
		case out.Len() > 0 && !strings.HasSuffix(out.String(), "-"):
			out.WriteByte('-')
		}
	}
	if out.Len() == 0 {
		return "name"
	}
	return out.String()
}
