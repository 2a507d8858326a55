package cli

import (
	"errors"
	"testing"
)

func TestTrialFault_NamesTheCauseInOneLine(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, stderr, want string }{
		{
			"rename in the cache",
			"npm error code ENOTEMPTY\nnpm error syscall rename\nnpm error path /home/a b/.npm/_npx/a3241bba59c344f5/node_modules/zod\nnpm error ENOTEMPTY: directory not empty, rename '/home/a b/.npm/_npx/a3241bba59c344f5/node_modules/zod' -> '/home/a b/.npm/_npx/a3241bba59c344f5/node_modules/.zod-x'",
			"its npx cache is damaged: remove /home/a b/.npm/_npx/a3241bba59c344f5",
		},
		{
			"module",
			"node:internal/modules/cjs/loader:1143\n  throw err;\n  ^\n\nError: Cannot find module '/home/a/.npm/_npx/a3241bba59c344f5/node_modules/zod/index.cjs'\n    at Module._resolveFilename (node:internal/modules/cjs/loader:1140:15)\n  code: 'MODULE_NOT_FOUND',\n",
			"its npx cache is damaged: remove /home/a/.npm/_npx/a3241bba59c344f5",
		},
		{
			"ES module",
			"Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'zod' imported from file:///home/a/.npm/_npx/a3241bba59c344f5/node_modules/x/index.js\n",
			"its npx cache is damaged: remove /home/a/.npm/_npx/a3241bba59c344f5",
		},
		{
			"module outside of a cache",
			"Error: Cannot find module '/srv/x.js'\n    at Module._load (node:internal/modules/cjs/loader:1:1) {\n  code: 'MODULE_NOT_FOUND',\n  requireStack: []\n}\n\nNode.js v20.1.0\n",
			"npx x: EOF; its standard error says: Error: Cannot find module '/srv/x.js' (start it yourself to see the rest)",
		},
		{
			"Python",
			"Traceback (most recent call last):\n  File \"/srv/x.py\", line 3, in <module>\n    main()\nKeyError: 'TOKEN'\n",
			"npx x: EOF; its standard error says: KeyError: 'TOKEN' (start it yourself to see the rest)",
		},
		{"no message", "one\ntwo\n", "npx x: EOF; its standard error says: two (start it yourself to see the rest)"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			stderr := &tailBuffer{buf: []byte(test.stderr)}
			if got := trialFault(errors.New("npx x: EOF" + stderr.errorSuffix())); got != test.want {
				t.Errorf("the reason is\n%s\nwant\n%s", got, test.want)
			}
		})
	}
	if got := trialFault(errors.New("EOF")); got != "EOF" {
		t.Errorf("an error without output is %q", got)
	}
}
