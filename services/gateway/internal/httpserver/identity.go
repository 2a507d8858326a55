package httpserver

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/issuer"
)

// Caller is the sender of a request, as identified by the request's credential.
type Caller struct {
	// Principal is the authenticated principal. It is never nil.
	Principal *identityv1.Principal
	// Stale is true if the token may have been revoked since the identity service last confirmed it.
	Stale bool
	// Credential is the credential that has identified the principal. It is never nil.
	Credential authn.Credential
}

// Revoked reports whether the caller's credential no longer identifies the caller, or whether this cannot be determined.
// While the identity service is busy, Revoked waits until ctx is done.
func (c Caller) Revoked(ctx context.Context) bool { return c.Credential.Check(ctx) != nil }

// Authenticated returns a handler that calls next for each request from an agent with a valid credential. If the caller
// has too many connections, the handler calls full instead, and closes the connection.
func (s *Server) Authenticated(next, full func(http.ResponseWriter, *http.Request, Caller)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		text, ok := bearer(r.Header["Authorization"])
		if sendsTwoCredentials(r) {
			s.refuseTwoCredentials(w, r)
			return
		}
		if !ok {
			s.unauthenticated(w, r, nil)
			return
		}
		credential, p, err := s.deps.Tokens.Authenticate(r.Context(), text, s.clientAddr(r))
		stale := errors.Is(err, authn.ErrTokensStale)
		switch {
		case stale && credential == nil, isUnknown(err):
			w.Header().Set("Retry-After", "1")
			s.refuse(w, r, commonv1.Code_CODE_POLICY_UNAVAILABLE, unknownText(err))
		case err != nil && !stale:
			s.unauthenticated(w, r, err)
		case !authn.MayUse(p, r.PathValue("server")):
			s.unauthenticated(w, r, errOtherResource)
		case p.GetRole() != authv1.TokenRole_TOKEN_ROLE_AGENT:
			s.refuse(w, r, commonv1.Code_CODE_FORBIDDEN, "")
		case !mayConnect(r.Context(), p):
			w.Header().Set("Connection", "close")
			full(w, r, Caller{Principal: p, Credential: credential})
		default:
			c := Caller{Principal: p, Credential: credential}
			c.Stale = stale && c.Revoked(r.Context())
			next(w, r, c)
		}
	}
}

// errOtherResource means that a token is valid, but not for the resource that the request names. Either the audiences
// of a JWT do not contain this resource (RFC 8707, section 2), or the mesh created the token for other servers.
var errOtherResource = errors.New("the token does not give access to this URL: use the URL of a server for which it was issued")

// isUnknown reports whether an error means that the gateway cannot tell whether a credential is valid. The client
// should then send the request again.
func isUnknown(err error) bool {
	refusal := issuer.RefusalOf(err)
	return errors.Is(err, authn.ErrVerifyBusy) || refusal != nil && refusal.Reason == issuer.NoKeys
}

// unknownText returns the message of the refusal for an error for which isUnknown returns true. It returns "" for other
// errors.
func unknownText(err error) string {
	if !isUnknown(err) {
		return ""
	}
	return err.Error() + "."
}

// sendsTwoCredentials reports whether a request contains more than one credential, or a credential in its URL, which
// logs would show (RFC 6750, sections 2 and 5.3).
func sendsTwoCredentials(r *http.Request) bool {
	return len(r.Header["Authorization"]) > 1 || strings.Contains(r.URL.RawQuery, "access_token=")
}

func (s *Server) refuseTwoCredentials(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("WWW-Authenticate", s.challenge(r)+`, error="invalid_request"`)
	refused := refusal.ProtocolError(commonv1.Code_CODE_UNAUTHENTICATED, "the request has more than one credential, or one in its URL: send one header `Authorization: Bearer TOKEN`.")
	s.answerRefusal(w, r, refused, http.StatusBadRequest)
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
	// was revoked, has expired, or belongs to a blocked caller.
	noToken      = "the request has no bearer token, or more than one: send the header `Authorization: Bearer TOKEN`, with an agent's token of this mesh."
	wrongToken   = "the mesh does not know this bearer token, or it was revoked: ask the operator of the mesh for an agent's token."
	revokedToken = "this bearer token was revoked: ask an operator of the mesh for another one (`sluice token create`), and put it in the client's configuration."
	blockedToken = "an operator of the mesh has blocked this caller, or the person for whom it works: ask an operator to end the block."
	expiredToken = "this bearer token has expired: ask an operator of the mesh for another one (`sluice token create`), and put it in the client's configuration."
)

// unauthenticated refuses a request. err is the reason why the request's credential is not accepted, or nil if the
// request has none. If the request has a credential, the response contains an error code (RFC 6750, section 3).
func (s *Server) unauthenticated(w http.ResponseWriter, r *http.Request, err error) {
	challenge, why := s.challenge(r), noToken
	if err != nil {
		challenge += `, error="invalid_token", error_description=`
		refusal := issuer.RefusalOf(err)
		switch {
		case refusal != nil, errors.Is(err, errOtherResource):
			challenge, why = challenge+strconv.Quote(err.Error()), err.Error()+"."
		case errors.Is(err, authn.ErrBlocked):
			challenge, why = challenge+`"the caller is blocked"`, blockedToken
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
	refused := refusal.ProtocolError(code, message)
	s.answerRefusal(w, r, refused, refused.Status())
}

// answerRefusal sends a refusal with an HTTP status, and counts it.
func (s *Server) answerRefusal(w http.ResponseWriter, r *http.Request, refused *refusal.Refusal, status int) {
	s.deps.Admission(enum.NameOrEmpty(refused.Code), s.clientAddr(r))
	s.deps.Meters.CountRefused(r.Context(), refused.Code)
	body, err := refused.Answer(refusal.Request{})
	if err != nil {
		s.deps.Log.ErrorContext(r.Context(), "answer could not be written", "error", err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) //nolint:gosec // JSON with its media type; the client may have disconnected
}
