package locator

import (
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// A Path is a path with segments that are separated by slashes. It has no empty segments and no `.` or `..` segments.
// Symbolic links are not resolved. The zero Path is the relative path ".". A Path is immutable.
type Path struct {
	absolute bool
	segments []string
}

var (
	errEscape  = errors.New("contains a % with two hex digits, which some readers decode")
	errHome    = errors.New("begins with ~, which some readers take for a home directory")
	errDrive   = errors.New("begins with a letter and a colon, which some readers take for a drive")
	errShare   = errors.New("begins with two slashes, after which some readers expect the name of a host")
	errClimb   = errors.New("has .. segments that lead above its start")
	errDots    = errors.New("has a segment of dots and spaces, which some readers take for the current or the parent folder")
	errAlike   = errors.New("has a character that some readers take for a slash or a dot")
	errBoth    = errors.New("one of the paths is absolute and the other is relative")
	errNoBase  = errors.New("has no last segment")
	errBlanked = errors.New("has a segment that begins or ends with a space, which some readers remove")
	errStream  = errors.New("has a segment with :$, which some readers take for a stream of the file or folder before it")
	errPathURL = errors.New("begins with the scheme of a URL")
	errNoExt   = errors.New("has a last segment whose only dots are at its start: some readers take it for an extension")
)

// ParsePath parses a path of at most [MaxBytes]. It returns an error if the string is empty, or if well-known programs
// interpret it in different ways. The programs differ if the string contains:
//   - unprintable characters, `\`, or `%` before two hexadecimal digits
//   - `~`, a drive, the scheme of a URL or two slashes at the start
//   - a segment that only some programs interpret as `.` or `..`, or as another segment
//   - a `..` that leads above the start of the path
func ParsePath(text string) (Path, error) {
	if err := checkText(text, MaxBytes); err != nil {
		return Path{}, err
	}
	for i := strings.IndexByte(text, '%'); 0 <= i && i < len(text); i++ {
		if isEscape(text[i:]) {
			return Path{}, errEscape
		}
	}
	switch {
	case text[0] == '~':
		return Path{}, errHome
	case len(text) > 1 && text[1] == ':' && isLetter(text[0]):
		return Path{}, errDrive
	case strings.HasPrefix(text, "//"):
		return Path{}, errShare
	}
	p := Path{absolute: text[0] == '/', segments: make([]string, 0, 1+strings.Count(text, "/"))}
	for segment := range strings.SplitSeq(text, "/") {
		switch segment {
		case "", ".":
			continue
		case "..":
			if len(p.segments) == 0 {
				return Path{}, errClimb
			}
			p.segments = p.segments[:len(p.segments)-1]
			continue
		}
		if err := checkFileName(segment); err != nil {
			return Path{}, err
		}
		p.segments = append(p.segments, segment)
	}
	if !p.absolute && len(p.segments) > 0 { // for example, "a/../~b" now starts with ~b, and "./c:" starts with c:
		if err := checkStart(p.segments[0]); err != nil {
			return Path{}, err
		}
	}
	return p, nil
}

// checkStart returns an error if the first segment of a path has a special meaning, such as ~ for the home folder.
func checkStart(segment string) error {
	switch {
	case segment[0] == '~':
		return errHome
	case len(segment) > 1 && segment[1] == ':' && isLetter(segment[0]):
		return errDrive
	}
	scheme, rest, found := strings.Cut(segment, ":")
	if found && isLetter(segment[0]) && every(scheme, isSchemeChar) && (rest == "" || lower(scheme) == "file") {
		return errPathURL
	}
	return nil
}

// checkFileName returns an error if some programs interpret a path segment as a different segment. Windows ignores dots
// at the end of a segment. In a segment with `:$`, Windows treats the part before `:$` as the name of a file or folder.
func checkFileName(segment string) error {
	if err := checkSegment(segment); err != nil {
		return err
	}
	switch {
	case strings.HasSuffix(segment, "."):
		return errDotEnd
	case strings.Contains(segment, ":$"):
		return errStream
	}
	return nil
}

// checkSegment returns an error if some programs interpret a segment of a path or URL as a different segment. For
// paths, use checkFileName, which makes further checks.
func checkSegment(segment string) error {
	switch {
	case strings.Trim(segment, ". ") == "":
		return errDots
	case segment[0] == ' ' || segment[len(segment)-1] == ' ':
		return errBlanked
	}
	if isASCII(segment) {
		return nil
	}
	if strings.ContainsAny(segment, legacyAlike) {
		return errAlike
	}
	plain := norm.NFKC.String(segment)
	if plain != segment && (strings.Trim(plain, ". ") == "" || strings.ContainsAny(norm.NFKC.String(nonASCII(segment)), `/\%~:`)) {
		return errAlike
	}
	return nil
}

// legacyAlike contains characters that a few systems convert to / \ ~ or % when they change the encoding, although
// Unicode normalization does not convert them. These are fraction slash, division slash, set minus, reverse solidus
// operator, big solidus, big reverse solidus, yen, won, overline and the Arabic percent sign.
const legacyAlike = "\u2044\u2215\u2216\u29f5\u29f8\u29f9\u00a5\u20a9\u203e\u066a"

func nonASCII(text string) string {
	return strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf {
			return -1
		}
		return r
	}, text)
}

// String returns the path without `.`, `..` and empty segments.
func (p Path) String() string {
	text := strings.Join(p.segments, "/")
	switch {
	case p.absolute:
		return "/" + text
	case text == "":
		return "."
	}
	return text
}

// Within reports whether p is root or is below root. It compares the paths segment by segment. Within returns an error
// if one path is absolute and the other is relative.
func (p Path) Within(root Path) (bool, error) {
	if p.absolute != root.absolute {
		return false, errBoth
	}
	return startsWith(p.segments, root.segments), nil
}

// Base returns the last segment. It returns an error if the path has no segments.
func (p Path) Base() (string, error) {
	if len(p.segments) == 0 {
		return "", errNoBase
	}
	return p.segments[len(p.segments)-1], nil
}

// Ext returns the extension, which is the end of the last segment starting at its last dot. It returns "" if the
// segment has no dot. It returns an error for names such as ".profile", because some programs treat the whole name as
// the extension. It also returns an error for characters that some programs treat as a dot.
func (p Path) Ext() (string, error) {
	base, err := p.Base()
	if err != nil {
		return "", err
	}
	if !isASCII(base) && strings.Contains(norm.NFKC.String(nonASCII(base)), ".") {
		return "", errAlike
	}
	name := strings.TrimLeft(base, ".")
	if dot := strings.LastIndexByte(name, '.'); dot >= 0 {
		return name[dot:], nil
	}
	if name != base {
		return "", errNoExt
	}
	return "", nil
}

func startsWith(segments, root []string) bool {
	return len(segments) >= len(root) && slices.Equal(segments[:len(root)], root)
}
