package models_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/models"
)

// A provider returns its key in streamed answers, in the names and arguments of calls, and in errors. The key is
// removed everywhere, even if it is encoded.
func TestAsk_RemovesKeyFromAnswersAndErrors(t *testing.T) {
	t.Parallel()
	const key = `sk-live_4f/9+Zq"77-tail`
	text := func(s string) string { out, _ := json.Marshal(s); return string(out) } //nolint:errchkjson // a string
	forms := map[string]string{
		"plain": key, "header": "Authorization: Bearer " + key, "url": "https://x/?key=" + url.QueryEscape(key),
		"base64": base64.StdEncoding.EncodeToString([]byte("user:" + key)), "json in a text": text(key),
	}
	for kind, whole := range map[string][]string{"openai": openAIEvents, "anthropic": anthropicEvents} {
		for form, secret := range forms {
			half := len(secret) / 2
			streamed := make([]string, 0, len(whole))
			for _, line := range whole {
				line = strings.NewReplacer(`"Two "`, text("<"+secret[:half]), `"notes."`, text(secret[half:]+">"), `"\"milk\"}"`, text(text(secret)+"}"), "demo__search", "demo_sk-live_").Replace(line)
				streamed = append(streamed, line)
			}
			failed := func(w http.ResponseWriter) {
				w.Header().Set("Www-Authenticate", secret)
				w.WriteHeader(http.StatusUnauthorized)
				_, _ = fmt.Fprintf(w, `{"error":{"message":%s,"type":"x"}}`, text("the key "+secret+" is wrong"))
			}
			broken := func(w http.ResponseWriter) {
				events(whole[0])(w)
				_, _ = io.WriteString(w, "event: error\ndata: "+`{"type":"error","error":{"type":"api_error","message":`+text(secret)+`}}`+"\n\n")
			}
			for name, answer := range map[string]func(http.ResponseWriter){"answer": events(streamed...), "status": failed, "event": broken} {
				t.Run(kind+" "+form+" "+name, func(t *testing.T) {
					t.Parallel()
					f := newFakeProvider(t, answer)
					m, err := models.New(map[string]models.Provider{"p": {Kind: kind, URL: f.URL, Key: key}}, 0)
					if err != nil {
						t.Fatal(err)
					}
					var pieces strings.Builder
					got, err := m.Ask(t.Context(), question("p:m"), func(piece string) { pieces.WriteString(piece) })
					all := pieces.String() + "\n" + got.Content + "\n" + fmt.Sprint(got.Calls) + "\n" + fmt.Sprint(err)
					if !strings.Contains(all, "[redacted]") {
						t.Errorf("nothing was removed: %s", all)
					}
					for _, part := range []string{"live_4f", "77-tail", "4f%2F9", base64.RawStdEncoding.EncodeToString([]byte(key))[4:16], "bGl2ZV80Z"} {
						if strings.Contains(all, part) {
							t.Errorf("%q is in %s", part, all)
						}
					}
					if name == "answer" && (err != nil || len(got.Calls) != 1 || !json.Valid([]byte(got.Calls[0].GetArguments())) || pieces.String() != got.Content || got.Content[0] != '<') {
						t.Errorf("the answer is %v, streamed as %q: %v", got, pieces.String(), err)
					}
				})
			}
		}
	}
}
