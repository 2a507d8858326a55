package authn

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// Credential identifies the caller of a request, for example a bearer token. It can be checked again while the request
// is being processed. It is safe for concurrent use.
type Credential interface {
	// Check returns nil if the credential still identifies the caller, with the same rights. If this process does not know
	// at the moment which credentials are valid, Check waits. It stops waiting when ctx is done or when the source of the
	// credentials counts as unavailable.
	Check(ctx context.Context) error
	// IsValid reports whether the credential is known to still identify the caller, with the same rights. It does not
	// wait.
	IsValid() bool
}

// InProcess is the credential of a caller that another service of the mesh has identified, or that is part of this
// process. It is always valid.
type InProcess struct{}

// Check implements [Credential].
func (InProcess) Check(context.Context) error { return nil }

// IsValid implements [Credential].
func (InProcess) IsValid() bool { return true }

// ErrRightsChanged means that the rights of a token's or a JWT's principal have changed since the request was received.
// For example, its role, its groups or its servers have changed.
var ErrRightsChanged = errors.New("the rights of this token have changed: make the call again")

// BearerToken is a token that a client has presented. It implements [Credential].
type BearerToken struct {
	// Principal is the principal of the token. It is shared and must not be modified.
	Principal *identityv1.Principal

	tokens *Tokens
	hash   [sha256.Size]byte
}

// Bearer returns the token with the given secret. The result is shared and must not be modified. The errors are those
// of [Tokens.Lookup]. If the error is [ErrTokensStale], Bearer also returns the token from the last confirmed set, or
// nil if that set does not contain the token.
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
func (b *BearerToken) IsValid() bool { return b.currentError() == nil }

// Check implements [Credential].
func (b *BearerToken) Check(ctx context.Context) error {
	return b.tokens.awaitFresh(ctx, b.currentError)
}

// currentError returns nil if the token is valid and its principal has not changed. If the set is stale, so that this
// is unknown, the error is [ErrTokensStale], or errNotInLastSet if the last confirmed set does not contain the token.
func (b *BearerToken) currentError() error {
	now, err := b.tokens.lookup(&b.hash)
	switch {
	case now == nil && errors.Is(err, ErrTokensStale):
		return errNotInLastSet
	case err == nil && &now.bearer != b && !proto.Equal(now.bearer.Principal, b.Principal):
		return ErrRightsChanged
	default:
		return err
	}
}

// errNotInLastSet means that the set is stale, and that it did not contain the token when it was last confirmed.
var errNotInLastSet = fmt.Errorf("%w", ErrTokensStale)

// awaitFresh calls check and returns its result. While the result is [ErrTokensStale], awaitFresh waits for the next
// confirmation of the set and calls check again. It stops waiting after 2 s, when ctx is done, or when the source
// counts as unavailable. If this process is the source, awaitFresh does not wait, because no confirmation will arrive.
func (t *Tokens) awaitFresh(ctx context.Context, check func() error) error {
	err, began := check(), time.Now()
	for err == ErrTokensStale { //nolint:errorlint // not errors.Is, because waiting does not help with errNotInLastSet, which wraps ErrTokensStale
		confirmed := t.nextConfirmation()
		if err = check(); err != ErrTokensStale { //nolint:errorlint // as above
			break
		}
		confirmedAt := t.confirmedAt.Load()
		if confirmedAt == nil {
			break
		}
		left := sourceTimeout - max(time.Since(*confirmedAt), time.Since(began))
		if left <= 0 {
			break
		}
		timer := time.NewTimer(left)
		select {
		case <-confirmed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
		timer.Stop()
	}
	return err
}
