package config

import (
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// credentialParam matches names of query parameters that usually contain credentials.
var credentialParam = regexp.MustCompile(`(?i)key|token|secret|passw|pwd|auth|sig|credential|session|sas|jwt|^code$|^pat$`)

// isRandom reports whether a value looks random. Such a value has at least 20 characters. It consists of letters,
// digits, hyphens and underscores, and contains upper-case letters, lower-case letters and digits. Ordinary names,
// versions and UUIDs don't look random.
func isRandom(value string) bool {
	if len(value) < 20 {
		return false
	}
	var upper, lower, digit bool
	for _, r := range value {
		switch {
		case r >= 'A' && r <= 'Z':
			upper = true
		case r >= 'a' && r <= 'z':
			lower = true
		case r >= '0' && r <= '9':
			digit = true
		case r != '-' && r != '_':
			return false
		}
	}
	return upper && lower && digit
}

// URLSecrets returns the credentials in a URL: the password, or the user if there is no password, and the values of
// query parameters that look random or whose names suggest a credential. Each credential is returned in its encoded and
// its decoded form. If the URL can't be parsed, URLSecrets returns nil.
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
		if plain, err := url.QueryUnescape(name); err != nil || !credentialParam.MatchString(plain) && !isRandom(value) {
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

// ShownURL returns a URL in a form that is safe for messages. It omits the user, the query and the fragment, because
// each might contain a credential. The argument need not be a valid URL.
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
		text += "?" + hiddenText
	}
	return text
}
