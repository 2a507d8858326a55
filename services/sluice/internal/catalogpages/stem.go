package catalogpages

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// plainName matches names that can be file names unchanged, on every system: in lower case, because some systems ignore
// case, and without `~`, which marks all other names.
var plainName = regexp.MustCompile(`^[a-z0-9_][a-z0-9_.-]{0,99}$`)

// reserved are names of devices on Windows, with any text after the first dot.
var reserved = regexp.MustCompile(`^(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)`)

// maxSlug is how many characters remain of a name that can't be a file name.
const maxSlug = 40

// stem returns the name of a file, without its extension, for a server or a tool of any name. It has 1 to 100
// lower-case letters, digits and `_ . - ~`, and different names have different stems. It depends only on the name, so
// links stay valid across exports. A name that can't be a file name has a readable part and the first half of its
// SHA-256, for which a collision takes 2^64 tries.
func stem(name string) string {
	if plainName.MatchString(name) && !reserved.MatchString(name) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return slug(name) + "~" + hex.EncodeToString(sum[:len(sum)/2])
}

// slug returns the part of a name that a file name can show.
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
