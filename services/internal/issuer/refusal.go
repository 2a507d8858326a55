package issuer

import "fmt"

// Reason is the reason why a token is refused. Metrics count refusals by reason.
type Reason string

// These are the values of [Reason].
const (
	// Malformed means that the token is not a JWT that every parser reads alike, or that the mesh does not accept its
	// header.
	Malformed Reason = "malformed"
	// UnknownIssuer means that the claim `iss` names no configured issuer.
	UnknownIssuer Reason = "unknown_issuer"
	// WrongAlgorithm means that the algorithm is not accepted, or does not fit the key.
	WrongAlgorithm Reason = "algorithm"
	// WrongAudience means that the token was issued for another resource.
	WrongAudience Reason = "audience"
	// Expired means that the token has expired.
	Expired Reason = "expired"
	// NotYetValid means that the token is not valid yet, or was issued in the future.
	NotYetValid Reason = "not_yet_valid"
	// TooLong means that more time passes between `iat` and `exp` than the issuer's configuration allows.
	TooLong Reason = "max_life"
	// WrongClaim means that a claim is missing or has a value that the issuer's configuration does not accept.
	WrongClaim Reason = "claim"
	// UnknownKey means that the issuer's keys do not contain the key of the token.
	UnknownKey Reason = "unknown_key"
	// NoKeys means that the issuer's keys have not been fetched yet, or are too old.
	NoKeys Reason = "no_keys"
	// WrongSignature means that the signature is not the issuer's.
	WrongSignature Reason = "signature"
	// Blocked means that an operator has blocked the caller.
	Blocked Reason = "blocked"
)

// Refusal is the error of a token that is refused. Its text says what is wrong with the token, and contains no value of
// a claim.
type Refusal struct { //nolint:errname // like the refusals of the gateway
	Reason Reason
	// Issuer is the name of the issuer, or empty if the token names no configured issuer.
	Issuer string
	// KeyID is the `kid` of the token if the reason is [UnknownKey] or [NoKeys].
	KeyID string

	text string
}

func (r *Refusal) Error() string { return r.text }

// NewBlocked returns the refusal of a token whose caller is blocked. issuer is the name of the token's issuer. The
// refusal has the same text as err.
func NewBlocked(issuer string, err error) *Refusal {
	return &Refusal{Reason: Blocked, Issuer: issuer, text: err.Error()}
}

func refuse(reason Reason, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, text: fmt.Sprintf(format, args...)}
}
