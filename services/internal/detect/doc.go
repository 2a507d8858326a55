// Package detect finds secrets and personal data in text. If a policy says so, the gateway replaces what is found.
//
// The detectors are:
//
//	secrets  keys, tokens and passwords, by the rules of gitleaks (see below)
//	card     numbers of payment cards: the prefixes and lengths of the card schemes, and the check digit (ISO/IEC 7812-1)
//	iban     bank account numbers: the length that the country uses, and the check digits (ISO 13616, ISO 7064)
//	email    e-mail addresses (RFC 5321) whose domain has a top-level domain of letters
//	phone    phone numbers in the international format, with `+` and an assigned country code (ITU-T E.164)
//	us_ssn   social security numbers of the United States, with separators and only in the ranges that are issued
//
// The rules for secrets are in rules/gitleaks.toml, which is the unchanged configuration of gitleaks v8.30.1, under the
// MIT licence in rules/LICENSE. Rules that need the path of a file are not used, because a message has no path. The
// other rules apply as in gitleaks. A rule is tried only if the text contains one of the rule's keywords, and a match
// counts only if its entropy is high enough and no allowlist excludes it.
//
// A text is searched as it is. If it contains characters outside ASCII or JSON escapes, it is also searched with
// escapes resolved, with invisible characters removed, and with digits and letters of other widths and scripts replaced
// with ASCII. A secret that is divided between two texts is not found.
//
// [MaxText] and [MaxWork] limit the time of a search. All functions are safe for concurrent use. However, a [Search]
// must be used by only one goroutine.
package detect
