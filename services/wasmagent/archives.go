package wasmagent

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/agent"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/archive"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/manifest"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
)

// maxArchivePart limits the size of one part of an archive in a response, in bytes.
const maxArchivePart = 1 << 20

// maxImportedTurns and maxImportedEpoch limit the turn count and the epoch of an imported agent.
const (
	maxImportedTurns = 10_000
	maxImportedEpoch = 1_000_000
)

// archiveKeys contains the private key that signs exported archives, and the public keys that verify imported archives.
type archiveKeys struct {
	signingKey   ed25519.PrivateKey
	acceptedKeys []ed25519.PublicKey
}

// loadArchiveKeys loads the keys for archives. The file at path contains this process's own signing key. accepts
// contains the public keys of other installations. Processes that share a store must sign with the same key, so the
// first process stores its own key and all other processes use it.
func loadArchiveKeys(ctx context.Context, db *store.Store, path string, accepts []ed25519.PublicKey) (archiveKeys, error) {
	own, found, err := loadSigningKey(path, !db.IsShared)
	if err != nil {
		return archiveKeys{}, fmt.Errorf("read the key that signs archives: %w", err)
	}
	if !db.IsShared {
		public, _ := own.Public().(ed25519.PublicKey)
		return archiveKeys{own, append([]ed25519.PublicKey{public}, accepts...)}, nil
	}
	signs, all, err := db.ArchiveKeys(ctx, own, found)
	if err != nil {
		return archiveKeys{}, fmt.Errorf("read the key that signs archives: %w", err)
	}
	return archiveKeys{signs, append(all, accepts...)}, nil
}

// loadSigningKey reads a key from a file. If the file does not exist, loadSigningKey creates a key, and writes it to
// the file if keep is true. found reports whether the file existed.
func loadSigningKey(path string, keep bool) (key ed25519.PrivateKey, found bool, err error) {
	seed, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		seed, err = make([]byte, ed25519.SeedSize), nil
		_, _ = rand.Read(seed) // crypto/rand.Read never fails
		if keep {
			err = pki.WriteFile(path, seed, 0o600)
		}
	} else {
		found = true
	}
	if err == nil && len(seed) != ed25519.SeedSize {
		err = fmt.Errorf("%s has %d bytes, want %d", path, len(seed), ed25519.SeedSize)
	}
	if err != nil {
		return nil, false, err
	}
	return ed25519.NewKeyFromSeed(seed), found, nil
}

// exportArchive creates an archive of an agent and returns its first part. If the request contains the digest of a
// stored archive, exportArchive returns the requested part of that archive instead.
func (s *Service) exportArchive(ctx context.Context, a *agent.Agent, req *wasmagentv1.ExportAgentRequest) (*wasmagentv1.ArchivePart, error) {
	key := store.ArchiveKey{Owner: principal.Person(actingPrincipal(ctx)), Digest: req.GetArchiveDigest()}
	if req.ArchiveDigest == nil {
		if err := s.lockArchiving(ctx); err != nil {
			return nil, err
		}
		defer func() { <-s.archiving }()
		content, err := a.ArchiveContent(ctx, req.GetAcceptNotCovered())
		if err != nil {
			return nil, err
		}
		if !s.guests.IsShipped(a.Guest) {
			if content.Module, err = s.moduleByDigest(ctx, a.Guest, content.Agent.GetAgent().GetModuleDigest()); err != nil {
				return nil, err
			}
		}
		text, _, err := archive.Encode(content, s.archiveKeys.signingKey)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(text)
		key.Digest = hex.EncodeToString(sum[:])
		if err := s.store.PutArchive(ctx, key, text); err != nil {
			return nil, err
		}
	}
	return s.archivePart(ctx, key, req.GetOffset())
}

func (s *Service) archivePart(ctx context.Context, key store.ArchiveKey, offset int32) (*wasmagentv1.ArchivePart, error) {
	part, size, err := s.store.ArchivePart(ctx, key, int64(offset))
	if err != nil {
		return nil, err
	}
	public, _ := s.archiveKeys.signingKey.Public().(ed25519.PublicKey)
	id := sha256.Sum256(public)
	out := &wasmagentv1.ArchivePart{
		Digest: key.Digest, SizeBytes: int32(size), Offset: offset, DataBase64: part, KeyId: hex.EncodeToString(id[:]), PublicKeyBase64: public,
	}
	if next := int64(offset) + int64(len(part)); next < size {
		out.NextOffset = int32(next)
	}
	return out, nil
}

// GetArchivePart implements wasmagentv1.AgentServiceServer.
func (s *Service) GetArchivePart(ctx context.Context, req *wasmagentv1.GetArchivePartRequest) (*wasmagentv1.GetArchivePartResponse, error) {
	if _, err := s.findAgent(ctx, req.GetAgentId()); err != nil {
		return nil, err
	}
	part, err := s.archivePart(ctx, store.ArchiveKey{Owner: principal.Person(actingPrincipal(ctx)), Digest: req.GetArchiveDigest()}, req.GetOffset())
	if err != nil {
		return nil, toStatus(err)
	}
	return &wasmagentv1.GetArchivePartResponse{Archive: part}, nil
}

// lockArchiving waits until no other call is reading or writing an archive. Only one call at a time may do so, because
// archives need much memory.
func (s *Service) lockArchiving(ctx context.Context) error {
	select {
	case s.archiving <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ImportAgent implements wasmagentv1.AgentServiceServer.
func (s *Service) ImportAgent(ctx context.Context, req *wasmagentv1.ImportAgentRequest) (*wasmagentv1.ImportAgentResponse, error) {
	caller := actingPrincipal(ctx)
	key := store.ArchiveKey{Owner: principal.Person(caller), Digest: req.GetArchiveDigest(), IsImport: true}
	if req.GetSizeBytes() > archive.MaxBytes {
		return nil, toStatus(store.ErrPartInvalid)
	}
	if err := s.lockArchiving(ctx); err != nil {
		return nil, err
	}
	defer func() { <-s.archiving }()
	found, content, err := s.store.AddArchivePart(ctx, key, int64(req.GetSizeBytes()), int64(req.GetOffset()), req.GetDataBase64())
	switch {
	case err != nil:
		return nil, toStatus(err)
	case found.AgentID != "":
		a, err := s.findAgent(ctx, found.AgentID)
		if err != nil {
			return nil, err
		}
		return &wasmagentv1.ImportAgentResponse{Agent: a.Proto(), ExportedId: found.ExportedID}, nil
	case content == nil:
		return &wasmagentv1.ImportAgentResponse{NextOffset: int32(found.Stored)}, nil
	}
	a, from, err := s.importArchive(ctx, content, req.GetArchiveDigest())
	if err != nil {
		// After one of these errors, the caller may send the last part again, so the archive must stay in the store.
		if !errors.Is(err, agent.ErrNotStored) && !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, errStoreFull) {
			err = errors.Join(err, s.store.DropArchive(ctx, key))
		}
		return nil, toStatus(err)
	}
	s.agents.add(a)
	// If this fails and the caller sends the last part again, a second agent is created.
	if err := s.store.SetArchiveMade(ctx, key, a.ID, from); err != nil {
		s.log.WarnContext(ctx, "the agent of an archive can't be recorded", "agent", a.ID, "error", err)
	}
	return &wasmagentv1.ImportAgentResponse{Agent: a.Proto(), ExportedId: from}, nil
}

// importArchive creates an agent from an archive. It also returns the id that the agent had when it was exported.
func (s *Service) importArchive(ctx context.Context, text []byte, digest string) (*agent.Agent, string, error) {
	caller := actingPrincipal(ctx)
	content, err := archive.Decode(text, s.archiveKeys.acceptedKeys)
	if err != nil {
		return nil, "", err
	}
	exported := content.Agent.GetAgent()
	guest, ok, err := s.guestByModule(ctx, exported.GetModuleDigest())
	if err != nil {
		return nil, "", err
	}
	if !ok {
		return nil, "", fmt.Errorf("%w: %s, SHA-256 %s", errModuleUnknown, exported.GetGuest(), exported.GetModuleDigest())
	}
	if err := validateArchive(content.Agent); err != nil {
		return nil, "", err
	}
	requested := copiedManifest(caller, exported.GetCreator(), content.Agent.GetDetail().GetManifest())
	if requested == content.Agent.GetDetail().GetManifest() {
		requested = proto.CloneOf(requested) // the original is still needed for the comparison with the journal
		s.addDefaultModel(requested, guest, exported.GetConfig().GetModel())
	}
	manifest, limits, err := s.newManifest(ctx, caller, requested, "")
	if err != nil {
		return nil, "", err
	}
	if err := s.ensureSpace(ctx, principal.Person(caller)); err != nil {
		return nil, "", err
	}
	spec := agent.Spec{
		ID: newAgentID(), Creator: proto.CloneOf(caller), Guest: guest, Manifest: manifest, Limits: limitsWithin(content.Agent.GetDetail().GetLimits()), CreatedAt: time.Now(), ImportedDigest: digest,
	}
	a, err := agent.Import(callerOf(ctx), spec, content, s.deps(), limits)
	return a, exported.GetId(), err
}

// addDefaultModel adds a model right to the manifest of an imported agent, if the agent will use the default model
// instead of the model in its archive. The new right allows the default model, with the token and cost limits of the
// manifest's first model right.
func (s *Service) addDefaultModel(m *wasmagentv1.Manifest, guest, named string) {
	model := s.modelOf(named, true)
	if m == nil || model == "" || model == named || guest != modelGuest {
		return
	}
	if _, err := manifest.New(m).MatchModel(model, time.Now()); err == nil {
		return
	}
	right := &wasmagentv1.ModelRight{Model: model}
	if existing := m.GetModels(); len(existing) > 0 {
		right.Tokens, right.Cost = existing[0].Tokens, existing[0].Cost
	}
	m.Models = append(m.Models, right)
}

// validateArchive checks that an archived agent satisfies the rules for requests that create agents. It returns an
// error that wraps [archive.ErrInvalid] if it does not.
func validateArchive(a *wasmagentv1.ArchivedAgent) error {
	request := &wasmagentv1.CreateAgentRequest{
		Model: a.GetAgent().GetConfig().Model, Instructions: a.GetAgent().GetConfig().Instructions, MaxTurns: new(a.GetMaxTurns()),
		Manifest: a.GetDetail().GetManifest(), Limits: a.GetDetail().GetLimits(),
	}
	if err := protovalidate.Validate(request); err != nil {
		return fmt.Errorf("%w: agent.json: %w", archive.ErrInvalid, err)
	}
	if turns := a.GetAgent().GetTurnCount(); turns < 0 || turns > maxImportedTurns || a.GetGuestSequence() < 0 || a.GetAgent().GetEpoch() > maxImportedEpoch {
		return fmt.Errorf("%w: agent.json: its counts are out of range", archive.ErrInvalid)
	}
	return nil
}
