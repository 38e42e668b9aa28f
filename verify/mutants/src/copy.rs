//! A copy of the repository, in which `mutants` makes its small changes of the library.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Mutant;

/// Source file of the function that assembles the library's Lua script. In the copy, this function
/// can return a changed script while the tests run.
const SCRIPT: &str = "src/node/redis/script.rs";

/// A copy of the repository in the folder `target`.
pub(crate) struct Copy {
    dir: PathBuf,
    /// Build folder of the copy. The copy needs a separate build folder, because its programs have
    /// the same names as the programs of the repository.
    target: PathBuf,
}

impl Copy {
    /// Copies all files of the repository except those that git ignores.
    pub(crate) fn of(root: &Path) -> Result<Self, String> {
        let (dir, target) = (root.join("target/mutants/copy"), root.join("target/mutants/build"));
        let listed = Command::new("git")
            .current_dir(root)
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .output()
            .map_err(|e| format!("git: {e}"))?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        // Delete the copy of an earlier run, because the repository may have fewer files now.
        let _ = std::fs::remove_dir_all(&dir);
        for file in listed.split('\0').filter(|f| root.join(f).is_file()) {
            let (from, to) = (root.join(file), dir.join(file));
            let parent = to.parent().expect("a file has a folder");
            let made = std::fs::create_dir_all(parent).and_then(|()| std::fs::copy(&from, &to));
            made.map_err(|e| format!("{}: {e}", to.display()))?;
        }
        Ok(Self { dir, target })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Adds the module `reached.rs` to the copy of the library. For each change (mutant) in
    /// `scripts`, the module contains the file of the Lua script without and with the change.
    pub(crate) fn add_module<'m>(
        &self,
        scripts: impl Iterator<Item = &'m (usize, &'m Mutant)>,
    ) -> Result<(), String> {
        let mut module = include_str!("reached.rs").to_owned();
        module += "\n/// A script's file without and with the change.\n";
        module += "fn changed_file(id: usize) -> Option<(&'static str, &'static str)> {\n";
        module += "    match id {\n";
        for (id, mutant) in scripts {
            let text = self.text(&mutant.file)?;
            let new = mutant.made(&text, 0);
            let _ = writeln!(module, "        {id} => Some(({text:?}, {new:?})),");
        }
        module += "        _ => None,\n    }\n}\n";
        self.write(Path::new("src/palisade_mutants.rs"), &module)?;
        let lib = self.text(Path::new("src/lib.rs"))?;
        self.write(Path::new("src/lib.rs"), &format!("{lib}\nmod palisade_mutants;\n"))?;
        let script = self.text(Path::new(SCRIPT))?;
        let changed =
            script.replacen("const SOURCE: &str = concat!(", "const WRITTEN: &str = concat!(", 1);
        if changed == script {
            return Err(format!("{SCRIPT} has no SOURCE"));
        }
        let text = "\nstatic SOURCE: LazyLock<&'static str> =\n    \
                    LazyLock::new(|| crate::palisade_mutants::script(WRITTEN));\n";
        self.write(Path::new(SCRIPT), &(changed.replace("(SOURCE)", "(*SOURCE)") + text))
    }

    pub(crate) fn text(&self, file: &Path) -> Result<String, String> {
        std::fs::read_to_string(self.dir.join(file)).map_err(|e| format!("{}: {e}", file.display()))
    }

    pub(crate) fn write(&self, file: &Path, text: &str) -> Result<(), String> {
        std::fs::write(self.dir.join(file), text).map_err(|e| format!("{}: {e}", file.display()))
    }
}
