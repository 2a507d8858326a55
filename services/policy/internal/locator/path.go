package locator

import (
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// A Path is a path with slashes, cleaned of empty segments, `.` and `..`. Links on a disk are not known. The zero Path
// is the relative path ".". It is immutable.
type Path struct {
	absolute bool
	segments []string
}

var (
	errEscape  = errors.New("contains a % with two hex digits, which some decode")
	errHome    = errors.New("begins with ~, which some take for a home")
	errDrive   = errors.New("begins with a letter and a colon, which some take for a drive")
	errShare   = errors.New("begins with two slashes, which some take for the name of a host")
	errClimb   = errors.New("climbs above its start by .. segments")
	errDots    = errors.New("has a segment of dots and blanks, which some take for one of . and .. alone")
	errAlike   = errors.New("has a character that some take for a slash or a dot")
	errBoth    = errors.New("one of the paths is absolute and the other is relative")
	errNoBase  = errors.New("names no entry of a folder")
	errBlanked = errors.New("has a segment that begins or ends with a blank, which some take away")
)

// ParsePath reads a path of at most [MaxBytes]. It returns an error if two readers could differ: for unprintable
// characters, `\`, `%` followed by two hex digits, a leading `~`, drive or double slash, a segment that only some
// readers take for `.` or `..`, a `..` that climbs above the start, and the empty text.
func ParsePath(text string) (Path, error) {
	if err := checkText(text, MaxBytes); err != nil {
		return Path{}, err
	}
	for i := range len(text) {
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
	p := Path{absolute: text[0] == '/'}
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
		if err := checkSegment(segment); err != nil {
			return Path{}, err
		}
		p.segments = append(p.segments, segment)
	}
	if !p.absolute && len(p.segments) > 0 { // cleaning can make "a/../~b" and "./c:" start with such a segment
		return p, checkStart(p.segments[0])
	}
	return p, nil
}

// checkStart refuses a first segment that has a special meaning at the start of a path.
func checkStart(segment string) error {
	switch {
	case segment[0] == '~':
		return errHome
	case len(segment) > 1 && segment[1] == ':' && isLetter(segment[0]):
		return errDrive
	}
	return nil
}

// checkSegment refuses a segment that some systems read as another one.
func checkSegment(segment string) error {
	switch {
	case strings.Trim(segment, ". ") == "":
		return errDots
	case segment[0] == ' ' || segment[len(segment)-1] == ' ':
		return errBlanked
	}
	plain := norm.NFKC.String(segment)
	if plain != segment && (strings.Trim(plain, ". ") == "" || strings.ContainsAny(norm.NFKC.String(foreign(segment)), `/\%~:`)) {
		return errAlike
	}
	return nil
}

// foreign returns the characters of a text that are not ASCII.
func foreign(text string) string {
	return strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf {
			return -1
		}
		return r
	}, text)
}

// String returns the cleaned path.
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

// Within reports whether p is root or below it, by segments. It returns an error if one of them is absolute and the
// other is relative.
func (p Path) Within(root Path) (bool, error) {
	if p.absolute != root.absolute {
		return false, errBoth
	}
	return startsWith(p.segments, root.segments), nil
}

// Base returns the last segment. It returns an error if the path has none.
func (p Path) Base() (string, error) {
	if len(p.segments) == 0 {
		return "", errNoBase
	}
	return p.segments[len(p.segments)-1], nil
}

// Ext returns the last dot of the last segment and what follows it, as written; empty if there is no dot. Leading dots
// don't count: ".profile" has no extension.
func (p Path) Ext() (string, error) {
	base, err := p.Base()
	if err != nil {
		return "", err
	}
	name := strings.TrimLeft(base, ".")
	if dot := strings.LastIndexByte(name, '.'); dot >= 0 {
		return name[dot:], nil
	}
	return "", nil
}

// startsWith reports whether the first segments equal those of root.
func startsWith(segments, root []string) bool {
	return len(segments) >= len(root) && slices.Equal(segments[:len(root)], root)
}
