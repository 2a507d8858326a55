package gallery

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"google.golang.org/protobuf/proto"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/strictprotojson"
)

// Digest returns the SHA-256 of a template's JSON as lower-case hexadecimal digits. The digest covers the content, and
// the subject of the principal that added the template. It does not cover the fields about quarantine and acceptance.
// Digest returns "" if the template is too large.
func Digest(t *wasmagentv1.Template) string {
	content := proto.CloneOf(t)
	content.Builtin, content.Quarantined, content.AcceptedDigest = false, false, ""
	text, err := strictprotojson.Append(nil, content.ProtoReflect(), maxTemplate)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Accept ends the quarantine of a tenant's template, if the digest is that of the current template. It returns
// [ErrUnknown], [ErrChanged], or an error from the store.
func (g *Gallery) Accept(ctx context.Context, tenantID, id, digest string) (*wasmagentv1.Template, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t, err := g.get(tenantID, id)
	switch {
	case err != nil:
		return nil, err
	case digest == "" || Digest(t) != digest:
		return nil, fmt.Errorf("%w: %s", ErrChanged, t.GetId())
	case t.GetBuiltin(), !t.GetQuarantined() && t.GetAcceptedDigest() == digest:
		return t, nil
	}
	var accepted *wasmagentv1.Template
	found, err := g.store.AcceptTemplate(ctx, tenantID, t.GetId(), func(stored *wasmagentv1.Template) error {
		if Digest(stored) != digest { // another process has replaced the template
			return fmt.Errorf("%w: %s", ErrChanged, t.GetId())
		}
		stored.Quarantined, stored.AcceptedDigest = false, digest
		accepted = stored
		return nil
	})
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fmt.Errorf("%w: %s", ErrUnknown, id)
	}
	g.tenants[tenantID].templates[t.GetId()].Template = accepted
	return accepted, nil
}
