package identity

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"github.com/sluice-mesh/sluice/services/internal/config"
)

const (
	// maxAccountName is the maximum length of the name of an account, in bytes.
	maxAccountName = 256
	// idTokenLeeway is how long ago an ID token may have expired, because clocks differ.
	idTokenLeeway = time.Minute
)

// prompt returns the parameter `prompt` for a sign-in at a server (OpenID Connect Core, section 3.1.2.1), or "" if it is
// not sent. By default, the authorization server asks for consent if each person uses a separate account. Otherwise a
// person could connect another person's account with which the browser is signed in, and never see a page. Refresh
// tokens need consent, too (section 11). Authorization servers that do not know the parameter ignore it (RFC 6749, section 3.1).
func (s *OAuthServer) prompt(client *oauthClient) string {
	switch {
	case s.Prompt == config.PromptOmit:
		return ""
	case s.Prompt == "" && (s.ForEachPerson || slices.Contains(client.Scopes, offlineAccess)):
		return config.PromptConsent
	default:
		return s.Prompt
	}
}

// accountName returns the name of the account in the ID token of a token response. This is the claim preferred_username,
// email or sub (OpenID Connect Core, section 5.1). It returns "" if the response has no ID token.
//
// The signature of the ID token is not verified, because the response comes directly from the token endpoint over TLS
// (OpenID Connect Core, section 3.1.3.7, number 6). The name is shown to people, and nothing else depends on it.
func (a *attempt) accountName(answer *oauth2.Token, now time.Time) (string, error) {
	token, _ := answer.Extra("id_token").(string)
	if token == "" {
		return "", nil
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", errors.New("the ID token is not a signed JWT")
	}
	var claims struct {
		Issuer   string  `json:"iss"`
		Audience any     `json:"aud"`
		Expires  float64 `json:"exp"`
		Username string  `json:"preferred_username"`
		Email    string  `json:"email"`
		Subject  string  `json:"sub"`
	}
	if err := decodePart(parts[1], &claims); err != nil {
		return "", err
	}
	audiences, isList := claims.Audience.([]any)
	if !isList {
		audiences = []any{claims.Audience}
	}
	switch {
	case claims.Issuer != a.Client.Issuer:
		return "", errors.New("the ID token was issued by another authorization server (iss)")
	case !slices.Contains(audiences, any(a.Client.ClientID)):
		return "", errors.New("the ID token was issued to another client (aud)")
	case claims.Expires < float64(now.Add(-idTokenLeeway).Unix()):
		return "", errors.New("the ID token has expired (exp)")
	}
	if err := checkIDToken(token, a.Client.ClientID, a.Nonce); err != nil {
		return "", err
	}
	name := strings.TrimSpace(withoutControls(cmp.Or(claims.Username, claims.Email, claims.Subject)))
	return strings.ToValidUTF8(name[:min(len(name), maxAccountName)], ""), nil
}
