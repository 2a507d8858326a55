package sandbox_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

// tampering is a shell script with which a program tries to change $APP, a directory that contains a program. Each
// attempt has a name and is undone if it succeeds. $OWN is the directory to which the program may write.
const tampering = `
try() { name=$1; shift; (eval "$@") >/dev/null 2>&1 && echo "$name"; }
try overwrite ': >> $APP/cli.js'
try truncate ': > $APP/spare'
try dependency ': >> $APP/node_modules/dep/index.js'
try plant 'echo x > $APP/node_modules/planted && rm $APP/node_modules/planted'
try remove 'rm $APP/spare && echo > $APP/spare'
try replace 'echo x > $OWN/mine && mv $OWN/mine $APP/spare'
try rename 'mv $APP/spare $APP/moved && mv $APP/moved $APP/spare'
try rename-folder 'mv $APP $APP.moved && mv $APP.moved $APP'
try rename-above 'mv ${APP%/*} ${APP%/*}.moved && mv ${APP%/*}.moved ${APP%/*}'
try symbolic-link 'ln -s $APP/cli.js $OWN/soft && : >> $OWN/soft'
try hard-link 'ln $APP/cli.js $OWN/hard && : >> $OWN/hard'
try link-in-place 'ln -s /bin/true $APP/linked && rm $APP/linked'
try chmod 'chmod 700 $APP/cli.js'
try touch 'touch $APP/cli.js'
try process-root ': >> /proc/self/root$APP/cli.js'
try descriptor 'exec 9< $APP/cli.js && : >> /proc/self/fd/9'
try remount 'mount -o remount,rw,bind $APP && : >> $APP/cli.js'
try unmount 'umount -l $APP && : >> $APP/cli.js'
try nested 'unshare -Urm sh -c "umount -l $APP; mount -o remount,rw,bind $APP; mount --bind $APP $OWN; : >> $APP/cli.js || : >> $OWN/cli.js"'
`

// installed adds a program to the fixture and returns the program's directory.
func (h *fixture) installed(t *testing.T) string {
	t.Helper()
	app := filepath.Join(h.dir, "installed", "app")
	for _, name := range []string{"cli.js", "spare", "node_modules/dep/index.js", "var/state"} {
		put(t, filepath.Join(app, name), name)
	}
	return app
}

// tamper runs the script tampering in the sandbox and returns the names of the attempts that succeeded.
func (h *fixture) tamper(t *testing.T, s *sandbox.Sandbox, app string) string {
	t.Helper()
	return strings.Join(strings.Fields(h.shell(t, s, "exec 2>/dev/null; APP="+app+" OWN="+h.Own+"; "+tampering)), " ")
}

// Case X15. A program can't change, replace or rename a read-only path or the directories above it.
func TestReadOnly_PathsCannotBeChanged(t *testing.T) {
	var app string
	eachMechanism(t, func(h *fixture) { app = h.installed(t); h.rules.ReadOnly = []string{app} }, func(t *testing.T, h *fixture, s *sandbox.Sandbox) {
		got := h.tamper(t, s, app)
		if s.Report().By == "Landlock" { // modes and times are not protected, and the report lists them
			got = strings.TrimSpace(strings.ReplaceAll(got, "chmod touch", ""))
		}
		if got != "" {
			t.Errorf("the attempts that succeeded are %s", got)
		}
		if open := h.tamper(t, sandbox.Nothing(), app); len(strings.Fields(open)) < 15 {
			t.Errorf("without a sandbox these succeed alone, so the attempts show little: %s", open)
		}
		if got := h.shell(t, s, "exec 2>/dev/null; cat "+app+"/node_modules/dep/index.js; ls "+app+"/node_modules"); got != "node_modules/dep/index.jsdep\n" {
			t.Errorf("the program reads %q", got)
		}
		if r := s.Report().String(); !strings.Contains(r, "programs") || strings.Contains(r, "to a program") {
			t.Error(r)
		}
	})
}

// Case X15. Working directories and paths that the rules make writable stay writable inside read-only directories.
// Hidden paths inside them stay hidden and can't be renamed.
func TestReadOnly_WorkAndWriteStayWritable(t *testing.T) {
	for name, edit := range map[string]func(h *fixture, app string){
		"working folder": func(h *fixture, app string) { h.rules.Work = []string{filepath.Join(app, "var")} },
		"write":          func(h *fixture, app string) { h.rules.Write = []string{filepath.Join(app, "var")} },
		"working folder of all": func(h *fixture, app string) {
			h.rules.Work = []string{h.dir}
			h.rules.ReadOnly = append(h.rules.ReadOnly, filepath.Dir(h.rules.Home))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var app string
			eachMechanism(t, func(h *fixture) { app = h.installed(t); h.rules.ReadOnly = []string{app}; edit(h, app) }, func(t *testing.T, h *fixture, s *sandbox.Sandbox) {
				if got := h.shell(t, s, "exec 2>/dev/null; echo x > "+app+"/var/new; cat "+app+"/var/new; echo y > "+app+"/node_modules/new"); name != "working folder of all" && got != "x\n" {
					t.Errorf("the program printed %q", got)
				}
				if _, err := os.Lstat(filepath.Join(app, "node_modules/new")); err == nil {
					t.Error("the program wrote to a read-only folder")
				}
				if got := h.shell(t, s, "exec 2>/dev/null; echo x > "+h.dir+"/shared/new; cat "+h.dir+"/shared/new; cat "+h.Token+"; mv "+h.Data+" "+h.Data+".moved"); got != "x\n" {
					t.Errorf("the program printed %q", got)
				}
				if got := h.shell(t, s, "exec 2>/dev/null; echo x > new; cat new"); got != "x\n" {
					t.Errorf("in its working folder the program printed %q", got)
				}
				h.mustBeWhole(t)
			})
		})
	}
}

// Case X15. The rules make a directory writable. Everything in it is writable, except for hidden paths, which stay
// hidden.
func TestReadOnly_WriteOpensWholeFolder(t *testing.T) {
	var app string
	eachMechanism(t, func(h *fixture) {
		app = h.installed(t)
		h.rules.ReadOnly = []string{filepath.Join(app, "node_modules"), filepath.Join(app, "cli.js"), h.dir}
		h.rules.Write = []string{h.dir}
	}, func(t *testing.T, h *fixture, s *sandbox.Sandbox) {
		if got := h.shell(t, s, "exec 2>/dev/null; : >> "+app+"/cli.js && echo x > "+app+"/node_modules/dep/new && echo wrote; cat "+h.Config+" "+h.Token); got != "wrote\n" {
			t.Errorf("the program printed %q", got)
		}
		got := h.attack(t, s)
		for _, what := range []string{"read config", "read token", "write config", "rename .sluice", "write program", "replace program"} {
			if text, ok := got[what]; ok {
				t.Errorf("%s: %s", what, text)
			}
		}
		h.mustBeWhole(t)
	})
}

// Case X15. An installer replaces a read-only directory. The new directory becomes read-only too.
func TestReadOnly_AppliesToReplacedFolder(t *testing.T) {
	var app string
	eachMechanism(t, func(h *fixture) { app = h.installed(t); h.rules.ReadOnly = []string{app} }, func(t *testing.T, h *fixture, s *sandbox.Sandbox) {
		done := make(chan string, 1)
		go func() { // the program may write for a short time
			done <- h.shell(t, s, "exec 2>/dev/null; touch up; until [ -e stop ]; do :; done; i=0; while [ $i -lt 1000 ] && (: >> "+app+"/cli.js) 2>/dev/null; do i=$((i+1)); done; "+
				"(: >> "+app+"/cli.js) 2>/dev/null && echo writes")
		}()
		awaitFile(t, filepath.Join(h.Own, "up"))
		if err := os.Rename(app, app+".old"); err != nil {
			t.Fatal(err)
		}
		h.installed(t)
		put(t, filepath.Join(h.Own, "stop"), "")
		if got := <-done; got != "" {
			t.Errorf("the program printed %s", got)
		}
	})
}

// Case X15. The sandboxed program could replace a link to another program. The report lists the link. A link in a
// read-only directory can't be replaced.
func TestReadOnly_ReportsReplaceableLinks(t *testing.T) {
	var link string
	for name, held := range map[string]bool{"in a folder that is read only": true, "elsewhere": false} {
		t.Run(name, func(t *testing.T) {
			eachMechanism(t, func(h *fixture) {
				app := h.installed(t)
				link = filepath.Join(h.dir, "links", "current")
				put(t, filepath.Join(h.dir, "links", "note"), "")
				if err := os.Symlink(app, link); err != nil {
					panic(err)
				}
				if h.rules.ReadOnly = []string{filepath.Join(link, "cli.js")}; held {
					h.rules.ReadOnly = append(h.rules.ReadOnly, filepath.Dir(link))
				}
			}, func(t *testing.T, h *fixture, s *sandbox.Sandbox) {
				got := h.shell(t, s, "exec 2>/dev/null; ln -sfn /bin "+link+" && echo replaced; mv "+filepath.Dir(link)+" "+h.dir+"/aside && echo moved; : >> "+link+"/cli.js && echo wrote") //nolint:dupword // a script
				mounted := s.Report().By == "namespaces"
				named := strings.Contains(s.Report().String(), "the link "+link+" to a program")
				if named != (!held && !mounted) || (held || mounted) && got != "" {
					t.Errorf("the program printed %q, and the report is %s", got, s.Report())
				}
			})
		})
	}
}

// Case X15. Even root can't replace a link in the root directory, such as /bin on a system where all programs are in
// /usr.
func TestReadOnly_LinksInRootCannotBeReplaced(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the root folder is root's")
	}
	h := newFixture(t)
	app := h.installed(t)
	link := "/sluice-test-" + filepath.Base(h.dir) + strconv.Itoa(os.Getpid())
	if err := os.Symlink(app, link); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = os.Remove(link) })
	h.rules.ReadOnly = []string{filepath.Join(link, "cli.js"), "/bin/sh", "/lib", "/sbin"}
	s := h.sandbox(t, sandbox.ByNamespaces)
	if r := s.Report().String(); strings.Contains(r, "the link /") {
		t.Error(r)
	}
	got := h.shell(t, s, "exec 2>/dev/null; L="+link+"; ln -sfn /tmp $L && echo replaced; mv $L $L.old && echo renamed; ln -s /tmp mine; mv -T mine $L && echo moved; rm -f $L && echo removed; "+ //nolint:dupword // a script
		"mount --bind /tmp $L/ && echo mounted; umount -l $L && echo unmounted; (: >> $L/cli.js) && echo wrote; readlink $L")
	if strings.TrimSpace(got) != app {
		t.Errorf("the program printed %q", got)
	}
	if to, err := os.Readlink(link); err != nil || to != app {
		t.Errorf("the link leads to %s, %v", to, err)
	}
}

// Case X15. A program is in a directory with other files. Only the program is protected, and the report says what is
// not protected.
func TestReadOnly_ProtectsSingleFileInSharedFolder(t *testing.T) {
	var file string
	eachMechanism(t, func(h *fixture) {
		file = filepath.Join(h.dir, "shared", "server.py")
		put(t, file, "program")
		h.rules.ReadOnly = []string{file}
	}, func(t *testing.T, h *fixture, s *sandbox.Sandbox) {
		got := h.shell(t, s, "exec 2>/dev/null; (: >> "+file+") && echo wrote; echo x > mine && mv mine "+file+" && echo replaced; mv "+file+" "+file+".old && echo moved; rm -f "+file+" && echo removed; echo x > note && cat "+file)
		if got != "program" {
			t.Errorf("the program printed %q", got)
		}
		if r := s.Report().String(); !strings.Contains(r, "files created next to the program "+file) {
			t.Error(r)
		}
	})
}

func awaitFile(t *testing.T, path string) {
	t.Helper()
	eventually.Holds(t, path+" is there", func() bool { _, err := os.Stat(path); return err == nil })
}

// Case X21. All paths are read-only for a program, for example during an installation. The program can write only to
// its own directory and to devices that store nothing.
func TestReadOnly_RootLeavesOwnFolderWritable(t *testing.T) {
	eachMechanism(t, func(h *fixture) {
		h.rules.ReadOnly = []string{"/"}
		h.rules.Work = []string{"/dev/null"}
	}, func(t *testing.T, h *fixture, s *sandbox.Sandbox) {
		const attempts = `
try() { (eval "$2") >/dev/null 2>&1 && echo $1; }
try own 'echo x > new && mkdir -p a/b && ln -s new a/b/link && mv a c && rm -r c new'
try device 'echo x > /dev/null'
try beside 'echo x > $SHARED/new && rm $SHARED/new'
try overwrite ': >> $SHARED/note'
try tmp 'echo x > /tmp/sluice-x21 && rm /tmp/sluice-x21'
try var-tmp 'echo x > /var/tmp/sluice-x21 && rm /var/tmp/sluice-x21'
try memory 'echo x > /dev/shm/sluice-x21 && rm /dev/shm/sluice-x21'
try root 'mkdir /sluice-x21 && rmdir /sluice-x21'
try home 'echo x > $SHARED/../../new && rm $SHARED/../../new'
try remount 'mount -o remount,rw,bind / && : >> $SHARED/note'
try nested 'unshare -Urm sh -c "mount -o remount,rw,bind /; mount --bind $SHARED /mnt; : >> $SHARED/note || : >> /mnt/note"'
try hidden 'cat $TOKEN'
`
		script := "exec 2>/dev/null; SHARED=" + h.dir + "/shared TOKEN=" + h.Token + "; " + attempts
		if got := strings.Fields(h.shell(t, s, script)); strings.Join(got, " ") != "own device" {
			t.Errorf("the program wrote to %s", got)
		}
		if open := strings.Fields(h.shell(t, sandbox.Nothing(), script)); len(open) < 7 {
			t.Errorf("without a sandbox these succeed alone, so the attempts show little: %s", open)
		}
		h.mustBeWhole(t)
	})
}

// Case X21. A command may read one directory inside a hidden directory. The program can't change this directory, and
// can't access anything else in the hidden directory.
func TestCommand_ReadOpensOneFolderForReading(t *testing.T) {
	var app, other string
	eachMechanism(t, func(h *fixture) {
		root := filepath.Join(h.Data, "gateway/programs")
		app, other = filepath.Join(root, "mine/one"), filepath.Join(root, "mine/two")
		for _, file := range []string{"cli.js", "spare", "node_modules/dep/index.js"} {
			put(t, filepath.Join(app, file), file)
		}
		put(t, filepath.Join(other, "cli.js"), "another")
		h.rules.Private = append(h.rules.Private, root)
	}, func(t *testing.T, h *fixture, s *sandbox.Sandbox) {
		command := sandbox.Command{
			Path: "/bin/sh", Args: []string{"sh", "-c", "exec 2>/dev/null; cat " + app + "/cli.js; cat " + other + "/cli.js; APP=" + app + " OWN=" + h.Own + "; " + tampering},
			Env: []string{"PATH=/usr/bin:/bin", "HOME=" + h.Own}, Dir: h.Own, Own: h.Own, Read: app,
		}
		got := strings.Fields(run(t, s, command))
		if s.Report().By == "Landlock" { // modes and times are not protected, and the report lists them
			got = strings.Fields(strings.Replace(strings.Join(got, " "), "chmod touch", "", 1))
		}
		if strings.Join(got, " ") != "cli.js" {
			t.Errorf("the attempts that succeeded are %s", got)
		}
		if got := h.shell(t, s, "exec 2>/dev/null; cat "+app+"/cli.js"); got != "" {
			t.Errorf("another program of this sandbox reads %q", got)
		}
	})
}
