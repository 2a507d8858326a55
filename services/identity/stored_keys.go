package identity

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"google.golang.org/protobuf/proto"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/identity/internal/issuerkeys"
)

// sourceDigest returns an identifier of the source of an issuer's keys.
func sourceDigest(of issuerkeys.Source) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", of.Issuer, of.KeySet, of.CA))
	return hex.EncodeToString(sum[:])
}

// fetchKeys fetches the keys of an issuer and stores them. It also returns the keys if they can't be stored.
func (s *Service) fetchKeys(ctx context.Context, from issuerkeys.Source) ([]*identityv1.IssuerKey, error) {
	keys, err := issuerkeys.Fetch(ctx, from)
	if err != nil {
		return nil, err
	}
	raw, err := proto.Marshal(&identityv1.Issuer{Keys: keys})
	if err == nil {
		err = s.store.SaveKeys(ctx, sourceDigest(from), raw)
	}
	if err != nil {
		s.deps.Log.WarnContext(ctx, "the keys of an issuer can't be stored; they are lost at a restart", "issuer", from.Issuer, "error", err)
	}
	return keys, nil
}

// restoreKeys restores the stored keys of all issuers, so that JWTs are accepted after a restart even if an issuer is
// unavailable. Keys that were fetched too long ago are not used.
func (s *Service) restoreKeys(ctx context.Context) {
	sources := sourcesOf(s.tokens.identities().Issuers)
	s.tokens.keys.Use(sources)
	for _, of := range sources {
		raw, fetched, err := s.store.Keys(ctx, sourceDigest(of))
		var stored identityv1.Issuer
		if err == nil && !fetched.IsZero() {
			if err = proto.Unmarshal(raw, &stored); err == nil {
				s.tokens.keys.Restore(of, stored.GetKeys(), fetched)
			}
		}
		if err != nil {
			s.deps.Log.WarnContext(ctx, "the stored keys of an issuer can't be read; they are fetched", "issuer", of.Issuer, "error", err)
		}
	}
}
