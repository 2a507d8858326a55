package wasmagent_test

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

func (c client) exportArchive(id string) (text []byte, key ed25519.PublicKey) {
	c.t.Helper()
	digest, offset := "", int32(0)
	for {
		part, err := c.archivePart(id, digest, offset)
		if err != nil {
			c.t.Fatal(err)
		}
		text = append(text, part.GetDataBase64()...)
		digest, key, offset = part.GetDigest(), part.GetPublicKeyBase64(), part.GetNextOffset()
		if offset == 0 {
			break
		}
	}
	if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != digest {
		c.t.Fatalf("the archive does not have its digest")
	}
	return text, key
}

// archivePart returns a part of an archive. If the digest is empty, archivePart exports the agent and returns the first
// part.
func (c client) archivePart(id, digest string, offset int32) (*wasmagentv1.ArchivePart, error) {
	if digest != "" {
		resp, err := c.GetArchivePart(c.ctx, &wasmagentv1.GetArchivePartRequest{AgentId: id, ArchiveDigest: digest, Offset: offset})
		return resp.GetArchive(), err
	}
	resp, err := c.ExportAgent(c.ctx, &wasmagentv1.ExportAgentRequest{AgentId: id, Depth: new(wasmagentv1.ExportDepth_EXPORT_DEPTH_FULL)})
	return resp.GetArchive(), err
}

// The user ana can read the parts of an archive that she exported. The user ben can't read them, whether his request
// contains the id of ana's agent or of his own agent.
func TestGetArchivePart_IsRefusedToOthers(t *testing.T) {
	t.Parallel()
	m := newTestService(t)
	ana, ben := m.onBehalfOfUser(t, "ana"), m.onBehalfOfUser(t, "ben")
	id := ana.create(&wasmagentv1.CreateAgentRequest{})
	other := ben.create(&wasmagentv1.CreateAgentRequest{})
	text, _ := ana.exportArchive(id)
	sum := sha256.Sum256(text)
	digest := hex.EncodeToString(sum[:])
	if part, err := ana.archivePart(id, digest, 1); err != nil || string(part.GetDataBase64()) != string(text[1:]) || part.GetNextOffset() != 0 {
		t.Errorf("the part with offset 1 has %d bytes, the next offset is %d: %v", len(part.GetDataBase64()), part.GetNextOffset(), err)
	}
	_, err := ana.archivePart(id, strings.Repeat("0", 64), 0)
	rpctest.WantStatus(t, err, codes.NotFound, "ARCHIVE_UNKNOWN")
	_, err = ben.archivePart(id, digest, 0)
	rpctest.WantStatus(t, err, codes.NotFound, "AGENT_UNKNOWN")
	_, err = ben.archivePart(other, digest, 0)
	rpctest.WantStatus(t, err, codes.NotFound, "ARCHIVE_UNKNOWN")
	_, err = ana.archivePart(id, "", 0)
	if err != nil {
		t.Fatal(err)
	}
}

// importArchive imports an archive in parts of at most size bytes.
func (c client) importArchive(text []byte, size int) (resp *wasmagentv1.ImportAgentResponse, err error) {
	sum := sha256.Sum256(text)
	for offset := 0; ; {
		resp, err = c.ImportAgent(c.ctx, &wasmagentv1.ImportAgentRequest{
			ArchiveDigest: hex.EncodeToString(sum[:]), SizeBytes: int32(len(text)), Offset: int32(offset), DataBase64: text[offset:min(len(text), offset+size)],
		})
		if err != nil || resp.GetNextOffset() == 0 {
			return resp, err
		}
		offset = int(resp.GetNextOffset())
	}
}

// An agent is imported by another installation. Afterwards, the copy and the original request the same effects and use
// the same amount of fuel.
func TestImportAgent_BehavesLikeOriginal(t *testing.T) {
	t.Parallel()
	here := newTestService(t).onBehalfOfUser(t, "ana")
	id := here.create(&wasmagentv1.CreateAgentRequest{Instructions: new("Be brief."), Limits: &wasmagentv1.Limits{EffectsPerTurn: new(int32(50))}})
	big := strings.Repeat("0123456789", 100_000)
	here.mustPrompt(id, "todo pending x\nwrite a.txt one\nwrite ä/b.txt two")
	if _, err := here.CallTool(here.ctx, &wasmagentv1.CallToolRequest{AgentId: id, ToolName: wasmagentv1.SandboxTool_SANDBOX_TOOL_WRITE_FILE, ToolInput: `{"path":"` + strings.Repeat("d/", 400) + `big","content":"` + big + `"}`}); err != nil {
		t.Fatal(err)
	}
	text, key := here.exportArchive(id)
	if second, _ := here.exportArchive(id); string(second) != string(text) {
		t.Error("two exports of the same agent differ")
	}

	there := newRestartableService(t, nil)
	_, err := there.onBehalfOfUser(t, "ben").importArchive(text, 1<<20)
	rpctest.WantStatus(t, err, codes.PermissionDenied, "SIGNATURE_UNKNOWN")
	there.close()
	there.cfg.AcceptedKeys = []ed25519.PublicKey{key}
	there.start()
	ben := there.onBehalfOfUser(t, "ben")
	made, err := ben.importArchive(text, 300_000)
	if err != nil {
		t.Fatal(err)
	}
	moved := made.GetAgent()
	if made.GetExportedId() != id || moved.GetId() == id || moved.GetState() != wasmagentv1.AgentState_AGENT_STATE_STOPPED || moved.GetCreator() != "ben" || moved.GetJournalId() != id || moved.GetImportedDigest() == "" {
		t.Errorf("the imported agent is %v, exported as %s", moved, made.GetExportedId())
	}
	if second, err := ben.importArchive(text, 1<<20); err != nil || second.GetAgent().GetId() != moved.GetId() {
		t.Errorf("a repeated import returns %v %v", second, err)
	}
	_, _, err = ben.prompt(moved.GetId(), "say x")
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "AGENT_STOPPED")
	if _, err := ben.ResumeAgent(ben.ctx, &wasmagentv1.ResumeAgentRequest{AgentId: moved.GetId()}); err != nil {
		t.Fatal(err)
	}
	next := "todo pending y\nread a.txt\nread ä/b.txt\nlist"
	original, imported := here.mustPrompt(id, next).GetResponse(), ben.mustPrompt(moved.GetId(), next).GetResponse()
	if original != imported || !strings.HasPrefix(imported, "one\ntwo\n") {
		t.Errorf("the original answers %q, the import %q", original, imported)
	}
	stayed, left := withoutStored(here.events(id)), withoutStored(ben.events(moved.GetId()))
	stayed, left = stayed[len(stayed)-10:], left[len(left)-10:]
	for i := range stayed {
		if stayed[i].GetEnvelopeDigest() != left[i].GetEnvelopeDigest() || stayed[i].GetFuel() != left[i].GetFuel() {
			t.Errorf("the event of the original is %v, that of the import %v", stayed[i], left[i])
		}
	}
	ben.verifyMatches(moved.GetId())
}

// withoutStored removes events of the kind STORED, because their envelopes contain times and ids.
func withoutStored(events []*wasmagentv1.Event) []*wasmagentv1.Event {
	return slices.DeleteFunc(events, func(e *wasmagentv1.Event) bool { return e.GetKind() == wasmagentv1.EventKind_EVENT_KIND_STORED })
}

// An archive that was modified, is incomplete, or is sent out of order is refused, and no agent is created.
func TestImportAgent_RefusesDamagedArchives(t *testing.T) {
	t.Parallel()
	c := newTestService(t).onBehalfOfUser(t, "ana")
	id := c.create(new(wasmagentv1.CreateAgentRequest))
	c.mustPrompt(id, "write a.txt one")
	text, _ := c.exportArchive(id)
	for range 60 {
		changed := append([]byte(nil), text...)
		at := rand.IntN(len(changed))
		changed[at] ^= 1 << rand.IntN(8)
		if _, err := c.importArchive(changed, 1<<20); status.Code(err) != codes.InvalidArgument && status.Code(err) != codes.PermissionDenied {
			t.Errorf("the import with byte %d changed returns %v", at, err)
		}
	}
	for name, torn := range map[string][]byte{"half": text[:len(text)/2], "more": append(append([]byte(nil), text...), make([]byte, 512)...), "no tar": []byte("x")} {
		_, err := c.importArchive(torn, 1<<20)
		t.Log(name)
		rpctest.WantStatus(t, err, codes.InvalidArgument, "ARCHIVE_INVALID")
	}
	sum := sha256.Sum256(text)
	send := func(digest string, offset int, part []byte) error {
		_, err := c.ImportAgent(c.ctx, &wasmagentv1.ImportAgentRequest{ArchiveDigest: digest, SizeBytes: int32(len(text)), Offset: int32(offset), DataBase64: part})
		return err
	}
	digest := hex.EncodeToString(sum[:])
	if err := send(digest, 0, text[:100]); err != nil {
		t.Fatal(err)
	}
	err := send(digest, 200, text[200:300])
	if rpctest.WantStatus(t, err, codes.FailedPrecondition, "PART_OUT_OF_ORDER"); rpc.Facts(err)["offset"] != "100" {
		t.Errorf("the error names the offset %v", rpc.Facts(err))
	}
	rpctest.WantStatus(t, send(digest, 50, []byte("other")), codes.InvalidArgument, "ARCHIVE_INVALID")
	if list, err := c.ListAgents(c.ctx, new(wasmagentv1.ListAgentsRequest)); err != nil || list.GetCount() != 1 {
		t.Errorf("the agents are %v %v", list, err)
	}
	_, err = c.ExportAgent(c.ctx, &wasmagentv1.ExportAgentRequest{AgentId: id, Depth: new(wasmagentv1.ExportDepth_EXPORT_DEPTH_FULL), ArchiveDigest: new(strings.Repeat("0", 64))})
	rpctest.WantStatus(t, err, codes.NotFound, "ARCHIVE_UNKNOWN")
}

// The user ana has started two imports and can't start a third. The user ben can still start an import.
func TestImportAgent_IsBoundedPerCaller(t *testing.T) {
	t.Parallel()
	m := newTestService(t)
	ana, ben := m.onBehalfOfUser(t, "ana"), m.onBehalfOfUser(t, "ben")
	begin := func(c client, name string) error {
		sum := sha256.Sum256([]byte(name))
		_, err := c.ImportAgent(context.WithoutCancel(c.ctx), &wasmagentv1.ImportAgentRequest{ArchiveDigest: hex.EncodeToString(sum[:]), SizeBytes: 64 << 20, DataBase64: []byte(name)})
		return err
	}
	for _, name := range []string{"a", "b", "b"} {
		if err := begin(ana, name); err != nil {
			t.Fatal(err)
		}
	}
	rpctest.WantStatus(t, begin(ana, "c"), codes.ResourceExhausted, "ARCHIVES_FULL")
	if err := begin(ben, "a"); err != nil {
		t.Fatal(err)
	}
}
