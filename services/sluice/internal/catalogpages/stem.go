package catalogpages

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// plainName matches names that are valid file names on every system. They are in lower case, because some systems
// ignore case. They have no `~`, because the function stem uses `~` in the file names of all other names.
var plainName = regexp.MustCompile(`^[a-z0-9_][a-z0-9_.-]{0,99}$`)

// reserved matches the names of devices on Windows, which are reserved with any extension.
var reserved = regexp.MustCompile(`^(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)`)

// maxSlug is the maximum number of characters in the readable part of a file name.
const maxSlug = 40

// stem returns a file name, without extension, for the page of a server or a tool. A stem has 1 to 100 lower-case
// letters, digits and `_ . - ~`. It depends only on the name, so links remain valid across exports. Different names
// have different stems. The stem of a name that can't be a file name consists of a readable part and the first half of
// the name's SHA-256 digest.
func stem(name string) string {
	if plainName.MatchString(name) && !reserved.MatchString(name) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return slug(name) + "~" + hex.EncodeToString(sum[:len(sum)/2])
}

// slug returns the readable part of a name's stem. It consists of the name's lower-case letters and digits, with
// hyphens for other characters, and has at most maxSlug characters.
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
