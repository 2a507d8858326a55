package httpserver

import (
	"context"
	"errors"
	"net/http"
	"strings"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

// Caller is the sender of a request, as identified by the request's credential.
type Caller struct {
	// Principal is the authenticated principal. It is never nil.
	Principal *identityv1.Principal
	// Stale is true if the token may have been revoked since the policy service last confirmed it.
	Stale bool
	// Credential is the credential that has identified the principal. It is never nil.
	Credential authn.Credential
}

// Revoked reports whether the caller's credential no longer identifies the caller, or whether this cannot be determined.
// While the policy service is busy, Revoked waits until ctx is done.
func (c Caller) Revoked(ctx context.Context) bool { return c.Credential.Check(ctx) != nil }

// Authenticated returns a handler that passes requests from agents with a valid token to next. If a caller has too many
// connections, the handler passes the caller's request to full instead, and closes the connection.
func (s *Server) Authenticated(next, full func(http.ResponseWriter, *http.Request, Caller)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		secret, ok := bearer(r.Header["Authorization"])
		if !ok {
			s.unauthenticated(w, r, nil)
			return
		}
		token, err := s.deps.Tokens.Bearer(secret)
		stale := errors.Is(err, authn.ErrTokensStale)
		switch {
		case stale && token == nil:
			s.refuse(w, r, commonv1.Code_CODE_POLICY_UNAVAILABLE, "")
		case err != nil && !stale:
			s.unauthenticated(w, r, err)
		case token.Principal.GetRole() != authv1.TokenRole_TOKEN_ROLE_AGENT:
			s.refuse(w, r, commonv1.Code_CODE_FORBIDDEN, "")
		case !mayConnect(r.Context(), token.Principal):
			w.Header().Set("Connection", "close")
			full(w, r, Caller{Principal: token.Principal, Credential: token})
		default:
			c := Caller{Principal: token.Principal, Credential: token}
			c.Stale = stale && c.Revoked(r.Context())
			next(w, r, c)
		}
	}
}

// bearer returns the bearer token of a request (RFC 6750, section 2.1). It returns false if the request does not
// contain exactly one token.
func bearer(lines []string) (string, bool) {
	if len(lines) != 1 {
		return "", false
	}
	scheme, secret, ok := strings.Cut(lines[0], " ")
	return secret, ok && strings.EqualFold(scheme, "bearer") && secret != ""
}

const (
	// noToken is the message for a request without a bearer token. The other messages are for a token that is unknown,
	// was revoked or has expired.
	noToken      = "the request has no bearer token, or more than one: send the header `Authorization: Bearer TOKEN`, with an agent's token of this mesh."
	wrongToken   = "the mesh does not know this bearer token, or it was revoked: ask the operator of the mesh for an agent's token."
	revokedToken = "this bearer token was revoked: ask an operator of the mesh for another one (`sluice token create`), and put it in the client's configuration."
	expiredToken = "this bearer token has expired: ask an operator of the mesh for another one (`sluice token create`), and put it in the client's configuration."
)

// unauthenticated refuses a request. err is the reason why the request's token is not accepted, or nil if the request
// has no token. If the request has a token, the response contains an error code (RFC 6750, section 3).
func (s *Server) unauthenticated(w http.ResponseWriter, r *http.Request, err error) {
	challenge, why := `Bearer realm="sluice"`, noToken
	if err != nil {
		challenge += `, error="invalid_token", error_description=`
		switch {
		case errors.Is(err, authn.ErrTokenRevoked):
			challenge, why = challenge+`"the token was revoked"`, revokedToken
		case errors.Is(err, authn.ErrTokenExpired):
			challenge, why = challenge+`"the token has expired"`, expiredToken
		default:
			challenge, why = challenge+`"the token is not known"`, wrongToken
		}
	}
	w.Header().Set("WWW-Authenticate", challenge)
	s.refuse(w, r, commonv1.Code_CODE_UNAUTHENTICATED, why)
}

// refuse refuses a request before its caller is identified. Such refusals are only counted in the journal. If each of
// them were recorded, unidentified callers could fill the journal.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, code commonv1.Code, message string) {
	s.deps.Admission(enum.NameOrEmpty(code), s.clientAddr(r))
	s.deps.Meters.CountRefused(r.Context(), code)
	refused := refusal.ProtocolError(code, message)
	body, err := refused.Answer(refusal.Request{})
	if err != nil {
		s.deps.Log.ErrorContext(r.Context(), "answer could not be written", "error", err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(refused.Status())
	_, _ = w.Write(body) // the client may have disconnected
}
