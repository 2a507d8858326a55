package notice_test

import (
	"crypto/tls"
	"encoding/pem"
	"io"
	"mime/quotedprintable"
	"net"
	"net/http/httptest"
	netmail "net/mail"
	"net/textproto"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
	"github.com/sluice-mesh/sluice/services/approval/internal/notice"
	"github.com/sluice-mesh/sluice/services/approval/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// mailServer is a fake mail server that stores the mails that it accepts.
type mailServer struct {
	addr string
	tls  *tls.Config // if nil, the server does not offer STARTTLS

	mu      sync.Mutex
	refuse  int    // the number of mails that the server refuses next
	unknown string // the recipient that the server refuses
	said    []string
	mails   []string
}

func startMailServer(t *testing.T, cfg *tls.Config) *mailServer {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &mailServer{addr: lis.Addr().String(), tls: cfg}
	var open sync.WaitGroup
	open.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			open.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() { lis.Close(); open.Wait() })
	return s
}

// serve implements the part of SMTP (RFC 5321) that is needed to receive one mail.
func (s *mailServer) serve(conn net.Conn) {
	defer func() { conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	c := textproto.NewConn(conn)
	say := func(line string) { _ = c.PrintfLine("%s", line) }
	say("220 sink")
	for {
		line, err := c.ReadLine()
		if err != nil {
			return
		}
		s.note(line)
		switch verb, _, _ := strings.Cut(strings.ToUpper(line), " "); verb {
		case "EHLO":
			say("250-sink")
			if _, secure := conn.(*tls.Conn); s.tls != nil && !secure {
				say("250-STARTTLS")
			} else if secure {
				say("250-AUTH PLAIN")
			}
			say("250 8BITMIME")
		case "STARTTLS":
			say("220 go on")
			conn = tls.Server(conn, s.tls)
			c = textproto.NewConn(conn)
		case "AUTH":
			say("235 welcome")
		case "DATA":
			say("354 go on")
			body, err := c.ReadDotBytes()
			if err != nil {
				return
			}
			say(s.take(string(body)))
		case "RCPT":
			if s.unknown != "" && strings.Contains(line, s.unknown) {
				say("550 unknown")
				continue
			}
			say("250 ok")
		case "QUIT":
			say("221 bye")
			return
		default:
			say("250 ok")
		}
	}
}

func (s *mailServer) note(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said = append(s.said, line)
}

func (s *mailServer) take(mail string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse > 0 {
		s.refuse--
		return "451 later"
	}
	s.mails = append(s.mails, mail)
	return "250 ok"
}

func (s *mailServer) all() (said, mails []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.said...), append([]string(nil), s.mails...)
}

func (s *mailServer) mail(lists ...notice.MailList) notice.Config {
	return notice.Config{Mail: &notice.Mail{Server: s.addr, TLS: "none", From: "sluice@example.com", Lists: lists}}
}

func mailList(name string, after float64, to ...string) notice.MailList {
	return notice.MailList{Target: notice.Target{Name: name, After: after}, To: to}
}

// names returns the names of the channels. Each mail address is a channel.
func names(cfg notice.Config) (out []string) {
	for _, c := range cfg.Channels() {
		out = append(out, c.Name)
	}
	return out
}

func TestMail_IsSentWhenACallWaits(t *testing.T) {
	t.Parallel()
	s := startMailServer(t, nil)
	s.refuse = 1
	cfg := s.mail(mailList("ops", 0, "ana@example.com"), mailList("boss", 0.5, "Carl <carl@example.com>"))
	at, name := start(t, cfg), names(cfg)
	at.ask(t, "a", func(q *lifecycle.OpenRequest) { q.Call.Call.Name = "refund\r\nBcc: eve@example.com" })
	eventually.Holds(t, "one is sent, at the second attempt", func() bool { return at.count(t, name[0], store.Sent) == 1 })
	if n := at.count(t, name[1], store.Sent); n != 0 {
		t.Fatal("it is escalated at once")
	}
	at.advanceClock(31 * time.Minute)
	eventually.Holds(t, "it is escalated", func() bool { return at.count(t, name[1], store.Sent) == 1 })
	at.decide(t, "a", yes)
	eventually.Holds(t, "the end is moot", func() bool { return at.count(t, name[0], store.Obsolete) == 1 })

	_, mails := s.all()
	if len(mails) != 2 {
		t.Fatalf("%d mails: %s", len(mails), mails)
	}
	for i, want := range []struct{ to, subject string }{
		{"<ana@example.com>", `Approve? pay refund\u000d\u000aBcc: eve@example.com, requested by bot`},
		{`"Carl" <carl@example.com>`, `Not decided yet: pay refund\u000d\u000aBcc: eve@example.com, requested by bot`},
	} {
		m, err := netmail.ReadMessage(strings.NewReader(mails[i]))
		if err != nil {
			t.Fatal(err)
		}
		if m.Header.Get("To") != want.to || m.Header.Get("Message-ID") != "<a-1-"+name[i]+"@sluice>" || m.Header.Get("Subject") != want.subject || m.Header.Get("Bcc") != "" {
			t.Errorf("the header is %q", m.Header)
		}
		body, err := io.ReadAll(quotedprintable.NewReader(m.Body))
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"sluice approvals approve a\n", "money moves", "pay/refunds"} {
			if !strings.Contains(string(body), text) {
				t.Errorf("no %q in %s", text, body)
			}
		}
		if strings.Contains(mails[i], hidden) || strings.Contains(string(body), hidden) {
			t.Errorf("an argument was mailed: %s", body)
		}
	}
}

// The mail server refuses one of two addresses. The mail to the other address is sent without delay.
func TestMail_IsSentToEachAddressSeparately(t *testing.T) {
	t.Parallel()
	s := startMailServer(t, nil)
	s.unknown = "gone@example.com"
	cfg := s.mail(mailList("ops", 0, "gone@example.com", "ana@example.com"))
	at, name := start(t, cfg), names(cfg)
	at.ask(t, "a")
	eventually.Holds(t, "one is sent", func() bool { return at.count(t, name[1], store.Sent) == 1 })
	eventually.Holds(t, "the other has failed", func() bool { return strings.Contains(at.log.String(), name[0]) })
	if _, mails := s.all(); len(mails) != 1 || strings.Contains(mails[0], "gone@") || at.count(t, name[0], store.Sent) != 0 {
		t.Errorf("mailed %q", mails)
	}
}

// The first attempt to send a mail fails, and then approvers are asked again. The sender sends only the mail about the
// newer request.
func TestMail_IsNotSentIfOutOfDate(t *testing.T) {
	t.Parallel()
	s := startMailServer(t, nil)
	s.refuse = 1
	cfg := s.mail(mailList("ops", 0, "ana@example.com"))
	at, name := start(t, cfg), names(cfg)
	at.ask(t, "a")
	eventually.Holds(t, "a first attempt", func() bool { return strings.Contains(at.log.String(), "an attempt to send a notice failed") })
	at.askAgain(t, "a")
	eventually.Holds(t, "the newer one is sent", func() bool { return at.count(t, name[0], store.Sent) == 1 && at.count(t, name[0], store.Obsolete) == 1 })
	if _, mails := s.all(); len(mails) != 1 || !strings.Contains(mails[0], "<a-2-"+name[0]+"@sluice>") {
		t.Errorf("mailed %q", mails)
	}
}

func TestMail_ContainsNoComparison(t *testing.T) {
	t.Parallel()
	s := startMailServer(t, nil)
	cfg := s.mail(mailList("ops", 0, "ana@example.com"))
	at := start(t, cfg)
	at.setPrevious(t)
	at.ask(t, "a")
	eventually.Holds(t, "it is sent", func() bool { return at.count(t, names(cfg)[0], store.Sent) == 1 })
	if _, mails := s.all(); strings.Contains(mails[0], hidden) || strings.Contains(mails[0], "differ") {
		t.Errorf("an argument was mailed: %s", mails)
	}
}

// readsHidden changes the call to a resources/read request whose URI contains the hidden value.
func readsHidden(q *lifecycle.OpenRequest) {
	c := q.Call.GetCall()
	c.Method, c.Name, c.ParamsJson = "resources/read", "https://ana:"+hidden+"@host/plan?key="+hidden, `{"uri":"https://ana:`+hidden+`@host/plan?key=`+hidden+`"}`
}

// Case X9. A mail contains the URI of the resource without the secrets in the URI.
func TestMail_ContainsNoSecretOfAURI(t *testing.T) {
	t.Parallel()
	s := startMailServer(t, nil)
	cfg := s.mail(mailList("ops", 0, "ana@example.com"))
	at := start(t, cfg)
	at.ask(t, "a", readsHidden)
	eventually.Holds(t, "it is sent", func() bool { return at.count(t, names(cfg)[0], store.Sent) == 1 })
	if _, mails := s.all(); strings.Contains(mails[0], hidden) || !strings.Contains(mails[0], "Approve? pay resources/read https://host/plan, requested by bot") {
		t.Errorf("mailed %s", mails)
	}
}

// certificate returns the TLS configuration of a server at 127.0.0.1, and the file that contains the server's
// certificate authority.
func certificate(t *testing.T) (*tls.Config, string) {
	t.Helper()
	made := httptest.NewTLSServer(nil)
	t.Cleanup(made.Close)
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: made.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: made.TLS.Certificates}, file
}

// By default, neither a mail nor a password is sent over an unencrypted connection.
func TestMail_IsSentOverTLSByDefault(t *testing.T) {
	t.Parallel()
	cert, ca := certificate(t)
	for name, tt := range map[string]struct {
		server *tls.Config
		ca     string
		sent   bool
	}{
		"STARTTLS":             {cert, ca, true},
		"no STARTTLS":          {nil, ca, false},
		"an unknown authority": {cert, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startMailServer(t, tt.server)
			cfg := s.mail(mailList("ops", 0, "ana@example.com"))
			cfg.Mail.TLS, cfg.Mail.CA, cfg.Mail.User, cfg.Mail.Password = "", tt.ca, "sluice", "geheim"
			at := start(t, cfg)
			at.ask(t, "a")
			if tt.sent {
				eventually.Holds(t, "it is sent", func() bool { return at.count(t, names(cfg)[0], store.Sent) == 1 })
				if said, _ := s.all(); !strings.Contains(strings.Join(said, "\n"), "AUTH PLAIN") {
					t.Errorf("said %q", said)
				}
				return
			}
			eventually.Holds(t, "the attempt fails", func() bool { return strings.Contains(at.log.String(), "an attempt to send a notice failed") })
			said, mails := s.all()
			if all := strings.Join(said, "\n"); len(mails) > 0 || strings.Contains(all, "AUTH") || strings.Contains(all, "MAIL") {
				t.Errorf("said %q, mailed %q", said, mails)
			}
			if strings.Contains(at.log.String(), "geheim") {
				t.Errorf("the log says %s", at.log)
			}
		})
	}
}

func TestMail_ValidateChecksEachField(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*notice.Mail)
		ok     bool
	}{
		"good":                    {func(*notice.Mail) {}, true},
		"TLS at once":             {func(m *notice.Mail) { m.TLS = "tls" }, true},
		"no TLS, here":            {func(m *notice.Mail) { m.TLS, m.Server = "none", "localhost:25" }, true},
		"no TLS, elsewhere":       {func(m *notice.Mail) { m.TLS = "none" }, false},
		"no TLS, a password":      {func(m *notice.Mail) { m.TLS, m.Server, m.User, m.Password = "none", "localhost:25", "u", "geheim" }, false},
		"some TLS":                {func(m *notice.Mail) { m.TLS = "perhaps" }, false},
		"no port":                 {func(m *notice.Mail) { m.Server = "mail.example.com" }, false},
		"no sender":               {func(m *notice.Mail) { m.From = "" }, false},
		"a user without":          {func(m *notice.Mail) { m.User = "u" }, false},
		"no list":                 {func(m *notice.Mail) { m.Lists = nil }, false},
		"an empty list":           {func(m *notice.Mail) { m.Lists[0].To = nil }, false},
		"no address":              {func(m *notice.Mail) { m.Lists[0].To[0] = "ana" }, false},
		"two lists with one name": {func(m *notice.Mail) { m.Lists = append(m.Lists, m.Lists[0]) }, false},
		"a list without names":    {func(m *notice.Mail) { m.Lists[0].Name = "" }, false},
	} {
		m := notice.Mail{Server: "mail.example.com:587", From: "Sluice <sluice@example.com>", Lists: []notice.MailList{mailList("ops", 0, "ana@example.com")}}
		tt.change(&m)
		cfg := notice.Config{Mail: &m}
		if err := cfg.Validate(); (err == nil) != tt.ok || err != nil && strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
