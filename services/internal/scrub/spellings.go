package scrub

import (
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Spellings returns a secret and the forms in which programs repeat one: encoded for URLs, for
// JSON, in base64 as a part of any text, and in hexadecimal digits. A secret of less than 6 bytes
// has none: it is a part of any text.
func Spellings(secret string) []string {
	secret = strings.TrimSpace(secret)
	if len(secret) < minLogged {
		return nil
	}
	out := []string{secret, url.QueryEscape(secret), url.PathEscape(secret), hex.EncodeToString([]byte(secret)), strings.ToUpper(hex.EncodeToString([]byte(secret)))}
	for _, text := range out[1:3] {
		out = append(out, percent.ReplaceAllStringFunc(text, strings.ToLower))
	}
	for _, options := range [][]json.Options{nil, {jsontext.EscapeForHTML(true), jsontext.EscapeForJS(true)}} {
		if text, err := json.Marshal(secret, options...); err == nil {
			out = append(out, string(text[1:len(text)-1]), strings.ReplaceAll(string(text[1:len(text)-1]), "/", `\/`))
		}
	}
	for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for before := range 3 { // bytes of other text in the group of three where the secret begins
			text := encoding.EncodeToString(append(make([]byte, before), secret...))
			out = append(out, text[(before*8+5)/6:(before+len(secret))*8/6])
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Every returns a scrubber that blots values out of a text for people, each line of a value in all of its [Spellings]:
// what a program or a server was given it may write down in another form.
func Every(values []string) *Scrubber {
	var all []string
	for _, line := range longLines(values, minLogged) {
		all = append(all, Spellings(line)...)
	}
	return New(nil, all)
}

var percent = regexp.MustCompile(`%[0-9A-F]{2}`)

// A Stream blots secrets out of a text that comes in pieces, over the bounds of pieces. It is
// for one goroutine.
type Stream struct {
	scrubber *Scrubber
	tell     func(string)
	held     string
}

// Stream returns a stream that passes what it is safe to show to tell.
func (s *Scrubber) Stream(tell func(string)) *Stream { return &Stream{scrubber: s, tell: tell} }

// Write adds a piece. An end of it that may be the beginning of a secret is held until more comes.
func (s *Stream) Write(piece string) {
	text := s.scrubber.Log(s.held + piece)
	at := len(text) - s.scrubber.begun(text)
	s.held = text[at:]
	s.pass(text[:at])
}

// Close passes what is held. Without it, it stays untold.
func (s *Stream) Close() {
	s.pass(s.held)
	s.held = ""
}

func (s *Stream) pass(text string) {
	if text != "" {
		s.tell(text)
	}
}

// begun returns how long the longest end of a text is with which a secret begins, in bytes.
func (s *Scrubber) begun(text string) (most int) {
	for _, secret := range s.logged {
		for n := min(len(secret)-1, len(text)); n > most; n-- {
			if strings.HasSuffix(text, secret[:n]) {
				most = n
			}
		}
	}
	return most
}
