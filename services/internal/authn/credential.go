package authn

import (
	"context"
	"crypto/sha256"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// Credential is what has identified the caller of a request. It can be checked again while the request is handled. It is
// safe for concurrent use.
type Credential interface {
	// Check returns nil if the credential still identifies the caller, with the same rights. While it is unknown which
	// credentials are valid, Check waits until ctx is done or the source of the credentials counts as unavailable.
	Check(ctx context.Context) error
	// IsValid reports whether the credential is known to identify the caller, with the same rights. It does not wait.
	IsValid() bool
}

// InProcess is the credential of a caller that another service of the mesh has identified, or that is part of this
// process. It is always valid.
type InProcess struct{}

// Check implements [Credential].
func (InProcess) Check(context.Context) error { return nil }

// IsValid implements [Credential].
func (InProcess) IsValid() bool { return true }

// ErrRightsChanged means that the role, owner, tenant, subject, agent or groups of a token have changed since a request
// was received.
var ErrRightsChanged = errors.New("the rights of this token have changed: make the call again")

// BearerToken is a token that a client has presented. It implements [Credential].
type BearerToken struct {
	// Principal is the principal of the token. It is shared and must not be modified.
	Principal *identityv1.Principal

	tokens *Tokens
	hash   [sha256.Size]byte
}

// Bearer returns the token with the given secret. The result is shared and must not be modified. The errors are those of
// [Tokens.Lookup]. With [ErrTokensStale], the result is the token in the last confirmed set, or nil if that set does not
// contain the token.
func (t *Tokens) Bearer(secret string) (*BearerToken, error) {
	if isMistyped(secret) && t.HasSet() {
		return nil, ErrTokenUnknown
	}
	hash := HashSecret(secret)
	found, err := t.lookup(&hash)
	if found == nil {
		return nil, err
	}
	return &found.bearer, err
}

// IsValid implements [Credential].
func (b *BearerToken) IsValid() bool { return b.compare(b.tokens.lookup(&b.hash)) == nil }

// Check implements [Credential].
func (b *BearerToken) Check(ctx context.Context) error {
	found, err := b.tokens.lookup(&b.hash)
	for found != nil && errors.Is(err, ErrTokensStale) {
		confirmed := b.tokens.nextConfirmation()
		if found, err = b.tokens.lookup(&b.hash); found == nil || !errors.Is(err, ErrTokensStale) {
			break
		}
		left := sourceTimeout - time.Since(*b.tokens.confirmedAt.Load())
		if left <= 0 {
			break
		}
		timer := time.NewTimer(left)
		select {
		case <-confirmed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return b.compare(found, err)
		}
		timer.Stop()
	}
	return b.compare(found, err)
}

// compare returns an error unless the token still belongs to its principal. now and err are the results of looking up
// the token: the token in the current set, or the reason why the lookup failed.
func (b *BearerToken) compare(now *token, err error) error {
	if err == nil && &now.bearer != b && !proto.Equal(now.bearer.Principal, b.Principal) {
		return ErrRightsChanged
	}
	return err
}
