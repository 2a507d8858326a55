package redact

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

// Forms returns a secret in all forms in which programs might print it. A program can print a secret unchanged, encoded
// for URLs, encoded for JSON, in base64 at any offset, or in hexadecimal digits. Forms returns nil if the secret is
// shorter than 6 bytes, because such a string can occur in ordinary text.
func Forms(secret string) []string {
	secret = strings.TrimSpace(secret)
	if len(secret) < minLoggedLen {
		return nil
	}
	out := []string{secret, url.QueryEscape(secret), url.PathEscape(secret), hex.EncodeToString([]byte(secret)), strings.ToUpper(hex.EncodeToString([]byte(secret)))}
	for _, text := range out[1:3] {
		out = append(out, percentEscape.ReplaceAllStringFunc(text, strings.ToLower))
	}
	for _, options := range [][]json.Options{nil, {jsontext.EscapeForHTML(true), jsontext.EscapeForJS(true)}} {
		if text, err := json.Marshal(secret, options...); err == nil {
			out = append(out, string(text[1:len(text)-1]), strings.ReplaceAll(string(text[1:len(text)-1]), "/", `\/`))
		}
	}
	for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for before := range 3 { // how many other bytes precede the secret in its first group of three bytes
			text := encoding.EncodeToString(append(make([]byte, before), secret...))
			out = append(out, text[(before*8+5)/6:(before+len(secret))*8/6])
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// NewForAllForms returns a Redactor for text that people read. It removes every line of the values in all forms that
// [Forms] returns, because a program or a server might have encoded a value.
func NewForAllForms(values []string) *Redactor {
	var all []string
	for _, line := range linesOfMinLength(values, minLoggedLen) {
		all = append(all, Forms(line)...)
	}
	return New(nil, all)
}

var percentEscape = regexp.MustCompile(`%[0-9A-F]{2}`)

// A Stream removes secrets from text that arrives in pieces, even if a secret is divided between pieces. It is not safe
// for concurrent use.
type Stream struct {
	redactor *Redactor
	tell     func(string)
	held     string
}

// Stream returns a stream that removes secrets from text and passes the remaining text to the function tell.
func (s *Redactor) Stream(tell func(string)) *Stream { return &Stream{redactor: s, tell: tell} }

// Write adds a piece of text. If the end of the text might be the beginning of a secret, Write holds this end back
// until the next piece.
func (s *Stream) Write(piece string) {
	text := s.redactor.Log(s.held + piece)
	at := len(text) - s.redactor.begun(text)
	s.held = text[at:]
	s.pass(text[:at])
}

// Close forwards the text that was held back.
func (s *Stream) Close() {
	s.pass(s.held)
	s.held = ""
}

func (s *Stream) pass(text string) {
	if text != "" {
		s.tell(text)
	}
}

// begun returns the length in bytes of the longest suffix of text that is the beginning of a secret.
func (s *Redactor) begun(text string) (longest int) {
	for _, secret := range s.logged {
		for n := min(len(secret)-1, len(text)); n > longest; n-- {
			if strings.HasSuffix(text, secret[:n]) {
				longest = n
			}
		}
	}
	return longest
}
