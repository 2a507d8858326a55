package config

import (
	"regexp"
	"strings"
)

// secretName matches names of variables, flags and headers that usually contain credentials.
var secretName = regexp.MustCompile(`(?i)key|token|secret|passw|pwd|auth|credential|session|cookie|jwt|\bpat\b|_pat$|^pat_|dsn|webhook|private`)

// secretPrefix matches prefixes that common services use for their tokens. A value with such a prefix counts as a
// credential even if isRandom returns false for the value.
var secretPrefix = regexp.MustCompile(`^(sk-|sk_live_|sk_test_|rk_live_|ghp_|gho_|ghu_|ghs_|github_pat_|glpat-|xox[abprs]-|xapp-|AKIA|AIza|ya29\.|eyJ|slc1_|npm_|pypi-|hf_|lin_api_|ntn_|secret_|Bearer |Basic )`)

// LooksSecret reports whether the value of a variable, flag or header is probably a credential. It considers the name,
// which may be empty, and the value. It can miss a credential, and it can report a value that is not a credential.
func LooksSecret(name, value string) bool {
	switch {
	case value == "" || value == "true" || value == "false":
		return false
	case secretPrefix.MatchString(value) || isRandom(value) || len(URLSecrets(value)) > 0:
		return true
	default:
		return secretName.MatchString(name) && !strings.HasPrefix(value, "/") && !strings.HasPrefix(value, "~")
	}
}
