package wasmagent_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
	"github.com/sluice-mesh/sluice/services/wasmagent"
)

// countMade returns the number of successful calls that a script reports in its answer.
func countMade(answer *wasmagentv1.PromptAgentResponse) int {
	return strings.Count(answer.GetResponse(), "done")
}

// Case X18. An agent and all of its copies share one budget of calls. A copy can be a fork, a fork of a fork, a fork
// from a snapshot, or an imported archive. The budget is not reset when the original agent ends.
func TestCopies_ShareBudgetOfOriginal(t *testing.T) {
	t.Parallel()
	l := newRestartableService(t, func(context.Context, *gatewayv1.CallToolRequest) (*gatewayv1.ToolAnswer, error) {
		return answerOf("done"), nil
	})
	c := l.onBehalfOfUser(t, "ana")
	manifest := toolManifest("t")
	manifest.Tools[0].Calls = new(int32(3))
	id := c.create(&wasmagentv1.CreateAgentRequest{Manifest: manifest})
	snapshot, err := c.SnapshotAgent(c.ctx, &wasmagentv1.SnapshotAgentRequest{AgentId: id})
	if err != nil {
		t.Fatal(err)
	}
	archived, _ := c.exportArchive(id)
	if n := countMade(c.mustPrompt(id, "tool demo t\ntool demo t")); n != 2 {
		t.Fatalf("the first agent makes %d calls", n)
	}
	fork := func(of, at string) string {
		req := &wasmagentv1.ForkAgentRequest{AgentId: of}
		if at != "" {
			req.SnapshotId = &at
		}
		resp, err := c.ForkAgent(c.ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetAgent().GetId()
	}
	arrived, err := c.importArchive(archived, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	imported := arrived.GetAgent().GetId()
	if _, err := c.ResumeAgent(c.ctx, &wasmagentv1.ResumeAgentRequest{AgentId: imported}); err != nil {
		t.Fatal(err)
	}
	second := fork(id, "")
	copies := []string{second, fork(second, ""), fork(id, snapshot.GetSnapshot().GetId()), imported, id}
	all := 2
	for _, one := range copies {
		all += countMade(c.mustPrompt(one, "tool demo t\ntool demo t"))
	}
	if all != 3 {
		t.Errorf("all copies together make %d calls, want 3", all)
	}
	if _, err := c.TerminateAgent(c.ctx, &wasmagentv1.TerminateAgentRequest{AgentId: id}); err != nil {
		t.Fatal(err)
	}
	l.close()
	l.start()
	c = l.onBehalfOfUser(t, "ana")
	if n := countMade(c.mustPrompt(second, "tool demo t")); n != 0 {
		t.Errorf("after the end of the first agent and a restart, a copy makes %d calls", n)
	}
	if n := countMade(c.mustPrompt(c.create(&wasmagentv1.CreateAgentRequest{Manifest: manifest}), "tool demo t")); n != 1 {
		t.Errorf("a new agent makes %d calls", n)
	}
}

// A client fetches the parts of one archive from different replicas, and sends the parts to different replicas. All
// replicas sign with the same key.
func TestArchive_PartsAreSharedByReplicas(t *testing.T) {
	t.Parallel()
	database := sqlstoretest.Start(t).Database(t)
	states := "file://" + t.TempDir() + "?metadata=skip&no_tmp_dir=true"
	var both [2]*restartableService
	for i := range both {
		both[i] = &restartableService{t: t, cfg: wasmagent.Config{Data: t.TempDir(), Source: database, Bucket: states}, gateway: fakeGateway{}}
		both[i].start()
		t.Cleanup(both[i].close)
	}
	one, two := both[0].onBehalfOfUser(t, "ana"), both[1].onBehalfOfUser(t, "ana")
	id := one.create(new(wasmagentv1.CreateAgentRequest))
	for _, name := range []string{"a", "b", "c"} {
		one.mustPrompt(id, "write "+name+" "+strings.Repeat("0123456789", 70_000))
	}
	var text []byte
	var key, digest string
	for n, next := 0, int32(0); n == 0 || next > 0; n++ {
		from := []client{one, two}[n%2]
		req := &wasmagentv1.ExportAgentRequest{AgentId: id, Depth: new(wasmagentv1.ExportDepth_EXPORT_DEPTH_FULL), Offset: next}
		if n > 0 {
			req.ArchiveDigest = &digest
		}
		resp, err := from.ExportAgent(from.ctx, req)
		if err != nil {
			t.Fatalf("part %d: %v", n, err)
		}
		part := resp.GetArchive()
		text, digest, next = append(text, part.GetDataBase64()...), part.GetDigest(), part.GetNextOffset()
		if key == "" {
			key = part.GetKeyId()
		}
		if part.GetKeyId() != key {
			t.Errorf("part %d is signed with the key %s, and the first part with %s", n, part.GetKeyId(), key)
		}
	}
	if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != digest || len(text) < 2<<20 {
		t.Fatalf("the parts are not an archive: %d bytes", len(text))
	}
	if second, _ := two.exportArchive(id); string(second) != string(text) {
		t.Error("the other replica creates another archive of the same agent")
	}
	for n, offset := 0, 0; ; n++ {
		to := []client{two, one}[n%2]
		req := &wasmagentv1.ImportAgentRequest{
			ArchiveDigest: digest, SizeBytes: int32(len(text)), Offset: int32(offset), DataBase64: text[offset:min(len(text), offset+700_000)],
		}
		resp, err := to.ImportAgent(to.ctx, req)
		// On a busy machine, the store may not answer in time. In that case, the test repeats the request.
		for second := 0; second < 5 && status.Code(err) == codes.Unavailable; second++ {
			resp, err = to.ImportAgent(to.ctx, req)
		}
		if err != nil {
			t.Fatalf("part %d: %v", n, err)
		}
		if resp.GetAgent() != nil {
			second, err := []client{one, two}[n%2].ImportAgent(to.ctx, &wasmagentv1.ImportAgentRequest{
				ArchiveDigest: digest, SizeBytes: int32(len(text)), Offset: int32(offset), DataBase64: text[offset:],
			})
			if err != nil || second.GetAgent().GetId() != resp.GetAgent().GetId() {
				t.Errorf("the last part, sent again to the other replica, creates %v, %v", second, err)
			}
			break
		}
		offset = int(resp.GetNextOffset())
	}
	// The maximum number of archives per person applies to both replicas together.
	begin := func(c client, name string) error {
		sum := sha256.Sum256([]byte(name))
		_, err := c.ImportAgent(c.ctx, &wasmagentv1.ImportAgentRequest{ArchiveDigest: hex.EncodeToString(sum[:]), SizeBytes: 64 << 20, DataBase64: []byte(name)})
		return err
	}
	three, four := both[0].onBehalfOfUser(t, "ben"), both[1].onBehalfOfUser(t, "ben")
	if err := begin(three, "a"); err != nil {
		t.Fatal(err)
	}
	if err := begin(four, "b"); err != nil {
		t.Fatal(err)
	}
	rpctest.WantStatus(t, begin(four, "c"), codes.ResourceExhausted, "ARCHIVES_FULL")
}
