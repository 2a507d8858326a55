package config

import (
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// credential is what the name of a query parameter contains that holds a credential.
var credential = regexp.MustCompile(`(?i)key|token|secret|passw|pwd|auth|sig|credential|session|sas|jwt|^code$|^pat$`)

// URLSecrets returns the credentials that a URL holds: its password, or its user where there is no password, and the
// values of query parameters whose names say so, each as written and as decoded. A URL that can't be read has none.
func URLSecrets(text string) []string {
	u, err := url.Parse(text)
	if err != nil {
		return nil
	}
	found := make(map[string]bool)
	if u.User != nil {
		password, ok := u.User.Password()
		if !ok {
			password = u.User.Username()
		}
		found[password], found[url.QueryEscape(password)] = true, true
	}
	for pair := range strings.FieldsFuncSeq(u.RawQuery, func(r rune) bool { return r == '&' || r == ';' }) {
		name, value, _ := strings.Cut(pair, "=")
		if plain, err := url.QueryUnescape(name); err != nil || !credential.MatchString(plain) {
			continue
		}
		found[value] = true
		if plain, err := url.QueryUnescape(value); err == nil {
			found[plain] = true
		}
	}
	delete(found, "")
	return slices.Sorted(maps.Keys(found))
}

// ShownURL returns a URL as messages show it: without its user, its query and its fragment, each of which may hold a
// credential. Of one that can't be read nothing behind a `?`, and nothing before an `@`, is shown.
func ShownURL(text string) string {
	text, _, _ = strings.Cut(text, "#")
	text, _, hasQuery := strings.Cut(text, "?")
	if at := strings.LastIndex(text, "@"); at >= 0 {
		scheme, _, ok := strings.Cut(text, "://")
		if text = text[at+1:]; ok {
			text = scheme + "://" + text
		}
	}
	if hasQuery {
		text += "?" + hidden
	}
	return text
}
